"""The user's folder of images and debug files, by identifier."""
