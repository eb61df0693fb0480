"""Sends a picture to a daemon and prints what its model found: python detect.py ADDRESS MODEL PICTURE.jpg"""

import sys

import edged

target, model, picture = sys.argv[1:]
with edged.Client(target) as client:  # "tls:box:8001" and EDGED_TOKEN for another machine
    for found in client.infer(model, picture).detections:
        print(found.label, f"{found.score:.2f}", *map(round, (found.x1, found.y1, found.x2, found.y2)))
