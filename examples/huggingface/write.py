"""Loads an exported folder by the transformers package alone, and prints what the model writes.

python examples/huggingface/write.py FOLDER
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
set_seed(0)
prompt = tokenizer("def ", return_tensors="pt")
made = model.generate(
    prompt.input_ids,
    attention_mask=prompt.attention_mask,
    max_new_tokens=40,
    do_sample=True,
    pad_token_id=model.config.eos_token_id,
)
print(tokenizer.decode(made[0]))
