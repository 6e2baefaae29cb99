"""Models of Hugging Face's format: a folder with `config.json`, weights as safetensors and a tokenizer.

It needs the packages of the extra ``hf``. Nothing here reads from a network, runs code of the folder's or unpickles.
"""
