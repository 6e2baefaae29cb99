"""Loads an exported folder, of a whole model or of adapters, and answers a question.

python examples/finetune/ask.py FOLDER QUESTION
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
asked = tokenizer(question, return_tensors="pt")
made = model.generate(
    asked.input_ids, attention_mask=asked.attention_mask, max_new_tokens=4, pad_token_id=tokenizer.eos_token_id
)
print(tokenizer.decode(made[0], skip_special_tokens=True))
