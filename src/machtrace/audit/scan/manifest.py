"""Privacy manifests: what an app and its SDKs declare.

Sources: Apple, *Describing use of required reason API* and *Privacy manifest files* (the keys and
the reasons of each category); *TN3183: Adding required reason API entries to your privacy
manifest*; *Upcoming third-party SDK requirements* (the list of SDKs).
"""

from __future__ import annotations

import plistlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any
from xml.parsers.expat import ExpatError

from machtrace.frozen import dataclass

MANIFEST = "PrivacyInfo.xcprivacy"
MAX_BYTES = 1 << 22
"""Bytes of a property list that is read."""
PREFIX = "NSPrivacyAccessedAPICategory"
REASONS: Mapping[str, Mapping[str, str]] = {
    "FileTimestamp": {
        "DDA9.1": "shown to the person who uses the device",
        "C617.1": "files in the containers of the app, its group or CloudKit",
        "3B52.1": "files or folders that the person granted access to",
        "0A2A.1": "an SDK's wrapper, called by the app",
    },
    "SystemBootTime": {
        "35F9.1": "elapsed time between events of the app, or timers",
        "8FFB.1": "absolute times of events of the app",
        "3D61.1": "an optional bug report",
    },
    "DiskSpace": {
        "85F4.1": "shown to the person who uses the device",
        "E174.1": "whether there is enough room, or what to delete",
        "7D9E.1": "an optional bug report",
        "B728.1": "health research",
    },
    "ActiveKeyboards": {
        "3EC4.1": "a custom keyboard app",
        "54BD.1": "a fitting user interface",
    },
    "UserDefaults": {
        "CA92.1": "only the app itself",
        "1C8F.1": "only apps, extensions and clips of the same group",
        "C56D.1": "an SDK's wrapper, called by the app",
        "AC6B.1": "configuration by mobile device management",
    },
}
"""By category: the codes that a manifest may state, with what each is for."""
_LISTED = """
    Abseil AFNetworking Alamofire AppAuth BoringSSL openssl_grpc Capacitor Charts
    connectivity_plus Cordova device_info_plus DKImagePickerController DKPhotoGallery
    FBAEMKit FBLPromises FBSDKCoreKit FBSDKCoreKit_Basics FBSDKLoginKit FBSDKShareKit
    file_picker FirebaseABTesting FirebaseAuth FirebaseCore FirebaseCoreDiagnostics
    FirebaseCoreExtension FirebaseCoreInternal FirebaseCrashlytics FirebaseDynamicLinks
    FirebaseFirestore FirebaseInstallations FirebaseMessaging FirebaseRemoteConfig Flutter
    flutter_inappwebview flutter_local_notifications fluttertoast FMDB geolocator_apple
    GoogleDataTransport GoogleSignIn GoogleToolboxForMac GoogleUtilities grpcpp GTMAppAuth
    GTMSessionFetcher hermes image_picker_ios IQKeyboardManager IQKeyboardManagerSwift
    Kingfisher leveldb Lottie MBProgressHUD nanopb OneSignal OneSignalCore
    OneSignalExtension OneSignalOutcomes OpenSSL OrderedSet package_info package_info_plus
    path_provider path_provider_ios Promises Protobuf Reachability RealmSwift RxCocoa
    RxRelay RxSwift SDWebImage share_plus shared_preferences_ios SnapKit sqflite Starscream
    SVProgressHUD SwiftyGif SwiftyJSON Toast UnityFramework url_launcher url_launcher_ios
    video_player_avfoundation wakelock webview_flutter_wkwebview
"""
LISTED_SDKS = frozenset(_LISTED.split())
"""SDKs that need a manifest, and a signature where they are binary."""
_KEYS = {
    "NSPrivacyTracking": bool,
    "NSPrivacyTrackingDomains": list,
    "NSPrivacyCollectedDataTypes": list,
    "NSPrivacyAccessedAPITypes": list,
}
_TYPE, _TYPE_REASONS = "NSPrivacyAccessedAPIType", "NSPrivacyAccessedAPITypeReasons"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One manifest."""

    path: str
    reasons: Mapping[str, tuple[str, ...]]
    """By required-reason category: the stated codes."""
    tracking: bool = False
    tracking_domains: tuple[str, ...] = ()
    data_types: tuple[str, ...] = ()
    root: Mapping[str, Any] = field(default_factory=dict)
    """All that it states."""
    faults: tuple[str, ...] = ()
    """The reasons why it is invalid, a sentence each (ITMS-91056)."""


def parse_property_list(data: bytes) -> dict[str, Any]:
    """Return a property list whose root is a dictionary.

    Raises:
        ValueError: it is none, or is larger than :data:`MAX_BYTES`; the text is the reason.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    try:
        root = plistlib.loads(data)
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(f"no property list: {str(error) or type(error).__name__}") from None
    if not isinstance(root, dict):
        raise ValueError("its root is no dictionary")  # noqa: TRY004 - a fault of the file
    return root


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Parse a manifest; what is wrong with it is among its ``faults``."""
    try:
        root = parse_property_list(data)
    except ValueError as error:
        return Manifest(path=path, reasons={}, faults=(str(error),))
    faults = [f"unknown key {key}" for key in root if key not in _KEYS]
    faults += [
        f"{key} is no {kind.__name__}"
        for key, kind in _KEYS.items()
        if key in root and not isinstance(root[key], kind)
    ]
    rows = root.get("NSPrivacyAccessedAPITypes", [])
    reasons: dict[str, tuple[str, ...]] = {}
    for row in rows if isinstance(rows, list) else ():
        faults += _add_reasons(row, reasons)
    types = root.get("NSPrivacyCollectedDataTypes", [])
    domains = root.get("NSPrivacyTrackingDomains", [])
    if root.get("NSPrivacyTracking") is True and not domains:
        faults.append("NSPrivacyTracking without NSPrivacyTrackingDomains")
    return Manifest(
        path=path,
        reasons=reasons,
        tracking=root.get("NSPrivacyTracking") is True,
        tracking_domains=_texts(domains),
        data_types=_texts(
            [row.get("NSPrivacyCollectedDataType") for row in types if isinstance(row, dict)]
            if isinstance(types, list)
            else []
        ),
        root=root,
        faults=tuple(faults),
    )


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values if isinstance(value, str))


def _add_reasons(row: object, reasons: dict[str, tuple[str, ...]]) -> list[str]:
    """Add one entry's reasons, and return its faults."""
    if not isinstance(row, dict):
        return ["an entry of NSPrivacyAccessedAPITypes is no dictionary"]
    name = row.get(_TYPE)
    if not isinstance(name, str):
        return [f"an entry without {_TYPE}"]
    category = name.removeprefix(PREFIX)
    if category not in REASONS or not name.startswith(PREFIX):
        return [f"unknown category {name}"]
    codes = _texts(row.get(_TYPE_REASONS, []))
    faults = [f"{name}: no reason"] if not codes else []
    faults += [f"{name}: unknown reason {code}" for code in codes if code not in REASONS[category]]
    faults += [f"{name} twice"] if category in reasons else []
    reasons[category] = (*reasons.get(category, ()), *codes)
    return faults


def true_manifest(manifest: Manifest | None, needed: Iterable[str]) -> bytes:
    """Return a manifest that declares what is used; reasons are left for a person to choose.

    A category without a reason has the reasons to choose from in a comment.

    Args:
        manifest: the existing one, whose valid reasons and other declarations stay.
        needed: the required-reason categories in use.
    """
    stated = {} if manifest is None else manifest.reasons
    known = {} if manifest is None else manifest.root
    rows: list[dict[str, Any]] = []
    for category in sorted(needed):
        codes = [code for code in stated.get(category, ()) if code in REASONS.get(category, {})]
        rows.append({_TYPE: f"{PREFIX}{category}", _TYPE_REASONS: codes or [_choice(category)]})
    root = {
        key: known[key] if isinstance(known.get(key), kind) else kind()
        for key, kind in _KEYS.items()
    }
    root["NSPrivacyAccessedAPITypes"] = rows
    text = plistlib.dumps(root, sort_keys=False).decode()
    for category in REASONS:
        # plistlib writes no comments.
        text = text.replace(f"<string>{_choice(category)}</string>", _comment(category))
    return text.encode()


def _choice(category: str) -> str:
    return f"machtrace: choose reasons of {category}"


def _comment(category: str) -> str:
    choices = "; ".join(f"{code}: {reason}" for code, reason in REASONS[category].items())
    return f"<!-- choose among {choices} -->"
