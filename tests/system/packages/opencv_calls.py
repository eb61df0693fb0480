"""A program for the package's Python: calls what edged calls of OpenCV, and decodes pictures of all kinds.

In the package OpenCV has no FFmpeg and no OpenBLAS: a call that reaches them ends the process with SIGILL. A unit test
compares the names here with those in `edged/`.
"""

import tempfile

import cv2
import numpy as np

WIDTH, HEIGHT = 128, 96
across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
image = np.stack([across * 2, down * 2, across + down], axis=2).astype(np.uint8)

# Ordinary and progressive JPEG, PNG of one to four channels and 16 bits, and the rest.
kinds = [(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90]), (".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])]
kinds += [(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])]
kinds += [(".png", each, []) for each in (image, image[:, :, 0], np.dstack([image, image[:, :, 0]]))]
kinds += [(".png", image.astype(np.uint16) * 256, [])]
kinds += [(name, image, []) for name in (".avif", ".webp", ".tiff", ".bmp", ".gif")]
for name, picture, options in kinds:
    written, encoded = cv2.imencode(name, picture, options)
    assert written, name
    for flags in (
        cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
        cv2.IMREAD_REDUCED_COLOR_2,
        cv2.IMREAD_REDUCED_COLOR_4,
        cv2.IMREAD_REDUCED_COLOR_8,
        cv2.IMREAD_REDUCED_GRAYSCALE_8,
        cv2.IMREAD_UNCHANGED,
    ):
        assert cv2.imdecode(encoded, flags) is not None, (name, flags)
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert decoded.shape == (HEIGHT, WIDTH, 3), name
    if picture.ndim == 3 and name != ".gif":
        assert np.abs(decoded.astype(int) - image).mean() < 8, name
with tempfile.TemporaryDirectory() as folder:
    assert cv2.imwrite(f"{folder}/image.jpg", image)

for interpolation in (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_NEAREST):
    assert cv2.resize(image, (640, 480), interpolation=interpolation).shape == (480, 640, 3)
    assert cv2.resize(image, (40, 30), interpolation=interpolation).shape == (30, 40, 3)
    assert cv2.resize(image.astype(np.float32), (40, 30), interpolation=interpolation).dtype == np.float32
for code in (cv2.COLOR_BGR2RGB, cv2.COLOR_RGB2BGR, cv2.COLOR_BGR2GRAY):
    cv2.cvtColor(image, code)
cv2.cvtColor(image[:, :, 0], cv2.COLOR_GRAY2BGR)
cv2.cvtColor(np.dstack([image, image[:, :, 0]]), cv2.COLOR_BGRA2BGR)
planes = np.full((HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
for code in (cv2.COLOR_YUV2BGR_NV12, cv2.COLOR_YUV2BGR_I420):
    assert cv2.cvtColor(planes, code).shape == (HEIGHT, WIDTH, 3)
chroma = planes[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
assert cv2.cvtColorTwoPlane(planes[:HEIGHT], chroma, cv2.COLOR_YUV2BGR_NV12).shape == (HEIGHT, WIDTH, 3)
for turn in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE):
    cv2.rotate(image, turn)
for flags in (cv2.INTER_LINEAR, cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP):
    matrix = np.array([[0.5, 0.1, 3.0], [-0.1, 0.5, 4.0]])
    for source in (image, image.astype(np.float32)):
        cv2.warpAffine(source, matrix, (200, 100), flags=flags, borderMode=cv2.BORDER_REPLICATE)
assert (cv2.merge(cv2.split(image)) == image).all()
assert (cv2.LUT(image, np.arange(256, dtype=np.uint8)) == image).all()
assert cv2.LUT(image, np.linspace(0, 1, 256, dtype=np.float32)).dtype == np.float32
cv2.add(image, image)
cv2.addWeighted(image, 0.5, image, 0.5, 0.0)
assert cv2.applyColorMap(image[:, :, 0], cv2.COLORMAP_TURBO).shape == (HEIGHT, WIDTH, 3)

sheet = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
corners = np.array([[[10, 10], [100, 20], [60, 80]]], np.int32)
cv2.rectangle(sheet, (2, 2), (30, 30), (255, 0, 0), cv2.FILLED)
cv2.rectangle(sheet, (2, 2), (30, 30), (255, 0, 0), 2, cv2.LINE_AA)
cv2.circle(sheet, (40, 40), 9, (0, 255, 0), cv2.FILLED, cv2.LINE_AA)
cv2.ellipse(sheet, (60, 60), (20, 10), 30.0, 0.0, 360.0, (0, 0, 255), 3, cv2.LINE_AA)
cv2.line(sheet, (0, 0), (90, 90), (9, 9, 9), 1, cv2.LINE_AA)
cv2.polylines(sheet, corners, True, (255, 255, 0), 2, cv2.LINE_AA)
cv2.fillPoly(sheet, corners, (255, 255, 255), cv2.LINE_AA)
cv2.getTextSize("edged 0.9", cv2.FONT_HERSHEY_SIMPLEX, 0.6, 1)
cv2.putText(sheet, "edged 0.9", (5, 60), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255, 255, 255), 1, cv2.LINE_AA)
contours, _ = cv2.findContours((sheet[:, :, 0] > 0).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
assert max(cv2.contourArea(contour) for contour in contours) > 500
cv2.findContours((sheet[:, :, 0] > 0).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
assert cv2.boxPoints(cv2.minAreaRect(contours[0])).shape == (4, 2)
mask = np.zeros((HEIGHT, WIDTH), np.uint8)
cv2.fillPoly(mask, corners, 1)
assert cv2.mean(np.ones((HEIGHT, WIDTH), np.float32), mask)[0] == 1
try:
    cv2.imdecode(np.empty(0, np.uint8), cv2.IMREAD_COLOR)
except cv2.error:
    print("all calls returned")
