"""Whether a model file can be served on this box, by which backends, and why not: asked before it is taken in.

    file -> parse -> graph -> opset -> operators -> external data -> memory -> session -> inference

The file is read in one child (`model/inspect.py`), every runtime is tried in one of its own (`build/trial.py`), two at
a time. Each may crash, hang or grow: that is then what was found, at the stage that it had begun.
"""

from edged.build.admission.examination import Admission, admit, examine, prove
from edged.build.admission.limits import AdmissionLimits

__all__ = ["Admission", "AdmissionLimits", "admit", "examine", "prove"]
