"""Repairs of models that cannot be served as they are: an opset or file format too new, dimensions declared wrongly.

    alone.py      one node as a model of its own, so that whatever changes it sees no weights    }
    lowering.py   operators written in an older version, one version at a time                   } in a child
    ir.py         the oldest version of the file format that a model can be stamped with         }
    limits.py     the newest versions that the runtimes here take, found by asking them          }
    dims.py       what an input really takes, found by trying                                    }
    simplify.py   constants folded by onnxslim                                                   }
    evaluator.py  the original's answers where no runtime here can give them                     }
    proof.py      whether original and repaired answer alike                                     }
    tasks.py      what the child does for each job of `messages.py`                              }
    repairer.py   the parent: which steps, in which order, each proven before the next

Nothing of it happens unasked. What was done is told by `edged.models.repair.Record`.
"""
