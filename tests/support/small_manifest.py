"""The manifest of a job with two learners of one pool, as text."""

SMALL_MANIFEST = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: small}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {}}
  training: {tokens: 1000, sequenceLength: 16, batchSize: 2}
  sync: {fragments: 4, interval: 4, overlap: 1}
  regions:
  - {name: east, pools: [{name: a, learners: 2}]}
"""
