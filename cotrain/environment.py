"""Send nothing about the user, and take no folder from a settings file in the current folder.

Each library reads its variables when it is imported, so `cotrain/__init__.py` imports this file first. Processes that
cotrain starts inherit the variables. What the user has set stays.
"""

import os

SETTINGS = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime; from 1.29 on, it also writes a device id below the user's cache
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, hf-xet, transformers and timm
    "NUMBA_CACHE_DIR": "",  # as usual; otherwise .numba_config.yaml could say from which folder pickles are loaded
    "NUMBA_CACHE_LOCATOR_CLASSES": "",
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
