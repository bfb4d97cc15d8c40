"""What help pages say of each setting, and in which panel it stands."""

from ngtcli.config import OF_ENGINE, READING, RETRIEVING

HELP: dict[str, str] = {
    "model": "Folder of a transformers model, a hub id, or builtin.",
    "method": "How drafts are made: auto, none (plain decoding), trie, prompt-lookup, llma,"
    " akunu, trtllm, rest, suffix, lookahead, recycling or draft-model; options as NAME:KEY=VALUE.",
    "draft_model": "Model that drafts for --method draft-model; same tokenizer, smaller.",
    "n": "Window of the n-gram trie, in tokens.",
    "lp": "Longest prefix matched in the trie, in tokens.",
    "num_draft": "Most draft nodes a step.",
    "learn_output": "Draft from the generated text as well.",
    "pool": "For auto: draft from earlier answers of the model as well, and keep this one.",
    "pool_documents": "For auto: keep in the pool also what answers quote from documents.",
    "background": "For auto: draft from what often follows what in general text as well; english"
    " ships, others are built by ngt trie build --background. May be given again.",
    "draft_from": "For auto, where not everything fits: draft from the prompt, or from all of the"
    " documents.",
    "calibrate": "For auto: measure at first use what a pass costs on this device.",
    "exact": "The tokens of plain decoding bit for bit, in half precision too: all passes have as"
    " many rows as --num-draft allows; auto: where that costs nothing.",
    "max_tokens": "Most tokens of answer.",
    "temperature": "0 is greedy.",
    "top_p": "Keep the likeliest tokens up to this probability.",
    "top_k": "Keep this many tokens; 0 keeps all.",
    "min_p": "Drop tokens less likely than this share of the likeliest.",
    "seed": "Seed of sampling.",
    "repetition_penalty": "Divide scores of tokens seen in prompt and output; 1 is off.",
    "presence_penalty": "Subtract from scores of tokens in the output.",
    "frequency_penalty": "Subtract for each time a token is in the output.",
    "stop": "Stop at this text; may be given again.",
    "device": "auto, cuda, mps or cpu.",
    "dtype": "auto (float32 on a CPU), float32, bfloat16 or float16.",
    "threads": "Threads to compute with on a CPU; 0 takes as many as cores are idle.",
    "packed": "On a CPU, pack the weights where this makes passes over several tokens quicker.",
    "capture": "Capture the model's passes: CUDA graphs, or on a CPU recorded operations.",
    "compile": "Compile the model's passes with torch.compile; takes minutes.",
    "overflow": "Documents too long: error, truncate to cut them, retrieve to read the passages"
    " that fit the question best, split to summarize part by part and then the summaries, refine"
    " to carry one summary from part to part; auto is retrieve for ask, split for summarize, else"
    " error.",
    "passages": "Most passages to read; 0 takes as many as fit.",
    "passage_tokens": "Tokens a passage, about.",
    "passage_overlap": "Tokens that a passage repeats of the one before it, about.",
    "embedder": "Embedding model, folder or hub id, that finds passages beside BM25.",
    "reranker": "Cross-encoder, folder or hub id, that ranks the best passages anew.",
    "max_mb": "Most megabytes of documents (or prompts, or recordings) read in all.",
    "max_files": "Most files looked at in folders.",
    "max_depth": "How deep folders in folders are read.",
    "strict": "A file in a folder that cannot be read is an error, not left out.",
    "password": "Password of encrypted PDFs; NGT_PASSWORD keeps it out of the process list.",
    "field": "Of JSON and CSV files, read this field alone.",
    "parser_seconds": "Most seconds for one PDF, Word, HTML, … file.",
    "parser_mb": "Most megabytes of memory for reading one of them.",
    "cache_mb": "Most megabytes kept in the cache; what was used longest ago goes first.",
    "color": "auto, always or never.",
    "engine": "What runs the model: ngt, or vllm with ngt's drafts.",
    "tensor_parallel": "For vLLM: devices that share each layer.",
    "pipeline_parallel": "For vLLM: groups of layers, each on devices of its own.",
    "data_parallel": "For vLLM: copies of the model.",
    "ray": "For vLLM: spread over the machines of a Ray cluster.",
}
PANELS = {
    "Drafting": (
        "method", "n", "lp", "num_draft", "learn_output", "draft_model", "pool", "pool_documents",
        "background", "draft_from", "calibrate", "exact",
    ),
    "Sampling": (
        "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
        "presence_penalty", "frequency_penalty",
    ),
    "Model": ("model", "device", "dtype", "threads", "packed", "capture", "compile"),
    "Reading": (*READING, "cache_mb"),
    "Passages": RETRIEVING,
    "Engine": OF_ENGINE,
    "Answer": ("max_tokens", "stop", "overflow", "color"),
}  # fmt: skip
