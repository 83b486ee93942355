"""The built-in prefixes of SDKs' names."""

import pytest

from machtrace.audit.rules import load_rules

# Classes of the SDKs' public headers, and names that only resemble them.
CLASSES = {
    "AFURLSessionManager": "AFNetworking",
    "AFHTTPSessionManager": "AFNetworking",
    "AMapLocationManager": "AMapLocationKit",
    "AMapServices": "AMapFoundationKit",
    "BMKMapManager": "BaiduMapKit",
    "FBSDKAppEvents": "FBSDKCoreKit",
    "FBSDKLoginManager": "FBSDKLoginKit",
    "FIRApp": "Firebase",
    "FIRCLSReportManager": "FirebaseCrashlytics",
    "FIRMessaging": "FirebaseMessaging",
    "GDTCORTransport": "GoogleDataTransport",
    "GULNetwork": "GoogleUtilities",
    "GeTuiSdk": "GTSDK",
    "JPUSHService": "JPush",
    "LOTAnimationView": "Lottie",
    "MASConstraintMaker": "Masonry",
    "MobClick": "UMCommon",
    "RLMRealm": "Realm",
    "SDImageCache": "SDWebImage",
    "SDWebImageManager": "SDWebImage",
    "SentrySDK": "Sentry",
    "TencentOAuth": "TencentOpenAPI",
    "UMConfigure": "UMCommon",
    "WXApi": "WechatOpenSDK",
    "Firework": None,
    "FIRst": None,
    "AFooController": None,
    "SDCardReader": None,
    "MASShortcut": None,
    "AppDelegate": None,
}


def owner(rules, name):
    return next((library.name for library in rules.libraries if library.class_prefix(name)), None)


@pytest.mark.parametrize(("name", "library"), CLASSES.items())
def test_a_class_belongs_to_the_sdk_of_its_prefix(name, library):
    assert owner(load_rules(), name) == library


def test_no_sdk_claims_what_is_watched():
    """Classes and functions of Apple's."""
    rules = load_rules()
    watched = {rule.method.class_name for rule in rules.rules if rule.method is not None}
    assert {name for name in watched if owner(rules, name)} == set()
    functions = {prefix for library in rules.libraries for prefix in library.functions}
    names = {rule.watch for rule in rules.rules}
    assert not any(name.startswith(prefix) for name in names for prefix in functions)


def test_every_prefix_is_reachable():
    """No earlier row claims all that a later one lists."""
    rules = load_rules()
    for library in rules.libraries:
        for prefix in library.classes:
            assert owner(rules, f"{prefix}Class") == library.name


def test_the_table_of_a_user_precedes(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        'schema = 1\ninclude = ["privacy"]\n'
        '[[libraries]]\nname = "Our fork"\nclasses = ["SDImage"]\n'
    )
    rules = load_rules(str(path))
    assert owner(rules, "SDImageCache") == "Our fork"
    assert owner(rules, "SDWebImageManager") == "SDWebImage"
