"""Tests that do not run on an emulated processor, each with its reason. All others run."""

from __future__ import annotations

# What an emulator cannot do:
_STAT = "QEMU writes /proc/self/stat itself, with processor times of 0"
_DATA = "QEMU does not pass RLIMIT_DATA on, which would limit itself, so a program may allocate more than its limit"
_THREAD = "QEMU has its own thread from the start, which does not yield"
_LIMIT = "a limit of a few seconds is under test, which an emulated child needs to start"
# By node id of a file, a test, or one case.
IMPOSSIBLE: dict[str, str] = {
    "tests/unit/test_child.py::test_run_child_killed_by_a_signal_is_reported_by_its_name": (
        "QEMU adds a line of its own to what a program prints that a signal ends"
    ),
    "tests/unit/test_child_watch.py::test_read_process_matches_its_state": _STAT,
    "tests/unit/test_host_process.py::test_read_returns_the_state_of_a_process_or_none": _STAT,
    "tests/integration/test_bounds.py::test_allocation_beyond_the_memory_fails_one_request_only": _DATA,
    "tests/unit/test_ort_session.py::test_infer_that_needs_too_much_memory_leaves_it_to_others": _DATA,
    "tests/unit/test_process.py::test_restrain_sets_every_limit_and_priority": _DATA,
    "tests/unit/test_process.py::test_restrain_covers_every_thread_of_a_build_child": _THREAD,
    "tests/unit/test_job_server.py::test_server_has_one_thread": _THREAD,
    "tests/unit/test_admission.py::test_examine_endless_loop_is_stopped_with_its_processes": _LIMIT,
    "tests/unit/test_families.py::test_recognise_one_failing_family_leaves_the_others[import time; time.sleep(100)]": (
        _LIMIT
    ),
}
_FACES = "one answer of the face detector takes 7 s with emulated floating point, choosing an engine takes 100 answers"
_LIFE = "it builds all engines of a detector that takes 1 s per answer: ten minutes; a restart test remains"
_ALARM = "it slows an engine down ten times: load alone changes an emulated engine's timing by nearly as much"
_EXPORT = "each export starts three processes that load ONNX; nothing in it depends on the processor"
_FRAMES = "it collects frames of cameras in real time and over restarts, ten minutes; other tests have cameras"
_JUDGED = "it judges engines on frames of cameras: half an hour"
_LANGUAGE = "it starts dozens of hosts of language models, each of which loads a runtime; the pure parts run"
_FLEET = "it builds engines on several boxes at once"
# Tests that take too long, or need a machine of their own. They run if the user names them.
SLOW: dict[str, str] = {
    "tests/integration/test_alarms.py": _ALARM,
    "tests/integration/test_packaged_models.py::test_faces_raw_outputs_hold_the_face_of_raw_and_encoded_pictures": (
        _FACES
    ),
    "tests/integration/test_packaged_models.py::test_faces_engines_are_verified_against_the_reference": _FACES,
    "tests/integration/test_precision_detectors.py::test_faces_in_float16": _FACES,
    "tests/integration/test_precision_detectors.py::test_faces_in_int8": _FACES,
    "tests/integration/test_commands.py::test_rebuild_of_a_serving_engine_fails_no_request": _LIFE,
    "tests/integration/test_driver_change.py": _LIFE,
    "tests/integration/test_export.py": _EXPORT,
    "tests/integration/test_fleet.py": _FLEET,
    "tests/integration/test_frame_judgement.py": _JUDGED,
    "tests/integration/test_frames.py": _FRAMES,
    "tests/integration/test_language.py": _LANGUAGE,
    "tests/unit/test_language_model.py": _LANGUAGE,
    "tests/integration/test_engine_life.py::test_swap_fails_no_request_and_every_frame_is_accounted_for": _LIFE,
    "tests/integration/test_engine_life.py::test_engine_altered_on_disk_is_never_served_and_is_rebuilt": _LIFE,
    "tests/integration/test_engine_life.py::test_killed_host_is_replaced_and_every_frame_is_accounted_for": _LIFE,
    "tests/integration/test_engine_life.py::test_killed_daemon_leaves_no_process_and_starts_again": _LIFE,
    "tests/integration/test_engine_life.py::test_daemon_process_maps_no_runtime": _LIFE,
}


def reason(node: str, named: bool = False) -> str:
    """Return why a test is left out; empty if it runs. `named`: the user named the test."""
    left_out = IMPOSSIBLE if named else IMPOSSIBLE | SLOW
    test = node.partition("[")[0]
    found = (left_out.get(name, "") for name in (node, test, test.partition("::")[0]))
    return next(filter(None, found), "")
