"""What help pages say of each setting, and in which panel it stands."""

from ngtcli.config import OF_ENGINE, READING, RETRIEVING

HELP: dict[str, str] = {
    "model": "Folder of a transformers model, a hub id, or builtin.",
    "method": "How drafts are made: auto, none (plain decoding), trie, prompt-lookup, llma,"
    " akunu, trtllm, rest, suffix, lookahead, recycling or draft-model; options as NAME:KEY=VALUE.",
    "draft_model": "Model that drafts for --method draft-model; same tokenizer, smaller.",
    "n": "Window of the n-gram trie, in tokens.",
    "lp": "Longest prefix matched in the trie, in tokens.",
    "num_draft": "At most this many draft nodes in a step.",
    "learn_output": "Draft from the generated text as well.",
    "pool": "For auto: draft from earlier answers of the model as well, and keep this one.",
    "pool_documents": "For auto: keep in the pool also what answers quote from documents.",
    "background": "For auto: draft from counts of words in general text as well. english comes with"
    " ngt; ngt trie build --background makes others. May be given again.",
    "draft_from": "For auto, where not everything fits: draft from the prompt, or from all of the"
    " documents.",
    "calibrate": "For auto: measure at first use what a pass costs on this device.",
    "exact": "The tokens of plain decoding bit for bit, in half precision too: every pass then has"
    " the rows of the largest draft (--num-draft). auto: where that costs nothing.",
    "max_tokens": "At most this many tokens in the answer.",
    "temperature": "0 is greedy.",
    "top_p": "Keep the likeliest tokens up to this probability.",
    "top_k": "Keep this many tokens; 0 keeps all.",
    "min_p": "Drop tokens less likely than this share of the likeliest.",
    "seed": "Seed of sampling.",
    "repetition_penalty": "Divide scores of tokens seen in prompt and output; 1 is off.",
    "presence_penalty": "Subtract from scores of tokens in the output.",
    "frequency_penalty": "Subtract for each time a token is in the output.",
    "stop": "Stop at this text; may be given again.",
    "max_repeats": "End an answer whose last words came this many times in a row, word for word,"
    " in 128 tokens or more; 0 never.",
    "device": "auto, cuda, mps or cpu.",
    "dtype": "auto (float32 on a CPU), float32, bfloat16 or float16.",
    "threads": "Threads to compute with on a CPU; 0 takes as many as cores are idle.",
    "packed": "On a CPU, pack the weights where this makes passes over several tokens quicker.",
    "capture": "Capture the model's passes: CUDA graphs, or on a CPU recorded operations.",
    "compile": "Compile the model's passes with torch.compile: 20 to 40 s for each shape on a CPU.",
    "overflow": "Documents too long: error, truncate to cut them, retrieve to read the passages"
    " that fit the question best, split to summarize part by part and then the summaries, refine"
    " to carry one summary from part to part; auto is retrieve for ask, split for summarize, else"
    " error.",
    "passages": "At most this many passages are read; 0: as many as fit. The card of a model may"
    " say otherwise: 1 for builtin.",
    "passage_tokens": "About how many tokens are in a passage.",
    "passage_overlap": "About how many tokens a passage repeats of the one before it.",
    "whole_tokens": "Read passages even where everything fits, if that is more than this many"
    " tokens; 0 never. The card of a model may say otherwise.",
    "embedder": "Embedding model, folder or hub id, that finds passages in addition to BM25.",
    "reranker": "Cross-encoder, folder or hub id, that ranks the best passages again.",
    "max_mb": "At most this many megabytes of documents (or prompts, or recordings) are read.",
    "max_files": "At most this many files in folders are looked at.",
    "max_depth": "Folders in folders are read down to this depth.",
    "strict": "A file in a folder that cannot be read is an error, not left out.",
    "password": "Password of encrypted PDFs; NGT_PASSWORD keeps it out of the process list.",
    "field": "Of JSON and CSV files, read this field alone.",
    "parser_seconds": "At most this many seconds for one PDF, Word, HTML, … file.",
    "parser_mb": "At most this many megabytes of memory for one of them.",
    "cache_mb": "At most this many megabytes are kept in the cache; what was used longest ago goes"
    " first.",
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
    "Answer": ("max_tokens", "stop", "max_repeats", "overflow", "color"),
}  # fmt: skip
