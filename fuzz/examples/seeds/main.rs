//! Writes the seeds of all corpora, from the test data of the project: `cargo run --example seeds`.

mod answers;
mod gguf;
mod remote;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

// Its counters, in case that this is built with cargo-fuzz's flags.
use libfuzzer_sys as _;
use safetensors::Dtype as Format;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use weft_core::chunk::{Chunk, Kind, SignedRows, export};
use weft_core::config::Config;
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, Put, RowForm, Store};
use weft_core::weights::{Safetensors, Tensor, tensors};
use weft_fuzz::{
    CONFIG, FINGERPRINT, KEY, PACKED_CONFIG, packed_configs, parcel_homes, parcel_tokenizer,
};

/// Merges that are kept of a tokenizer: a seed is small.
const MERGES: usize = 8;

fn main() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above");
    let data = project.join("crates/weft-core/tests");
    let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    for name in ["llama3", "qwen2", "qwen3", "qwen3_yarn"] {
        write("config", name, &read(data.join("golden").join(name).join("config.json")));
    }
    for name in ["chatml", "llama3", "qwen3"] {
        write("template", name, &read(data.join(format!("prompts/{name}.jinja"))));
    }
    write("template", "tiny", &read(project.join("assets/weft-tiny/chat_template.jinja")));
    let tokenizer = small_tokenizer(&read(data.join("prompts/tokenizer.json")));
    write("tokenizer", "small", &tokenizer);
    gguf::seeds(&tokenizer).iter().for_each(|(name, bytes)| write("gguf", name, bytes));
    let index = data.join("golden/qwen2/model.safetensors.index.json");
    write("safetensors", "index", &read(index));
    write("safetensors", "weights", &weights());
    for (name, sides) in PACKED {
        let bytes: &'static [u8] = packed(sides).leak();
        let is_named = |mark: &str| bytes.windows(mark.len()).any(|name| name == mark.as_bytes());
        let open = |config: Config| Safetensors::from_bytes(name, bytes, &config).err();
        let named = packed_configs().filter(|(mark, _)| is_named(mark));
        let refusals: Vec<_> = named.map(|(_, config)| open(config)).collect();
        assert!(refusals.iter().any(Option::is_none), "{name} is no valid seed: {refusals:?}");
        write("safetensors", name, bytes);
    }
    for (target, seeds) in [("grammar", answers::grammars()), ("tool_calls", answers::tool_calls())]
    {
        for (i, seed) in seeds.iter().enumerate() {
            write(target, &format!("seed-{i}"), seed.as_bytes());
        }
    }
    requests(&read(data.join("prompts/conversations.json")));
    rows();
    remote::seeds().iter().for_each(|(name, bytes)| write("remote", name, bytes));
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder).expect("a folder for the corpus");
    fs::write(folder.join(name), bytes).expect("a seed");
}

/// A tokenizer with its first merges, the tokens that they make, and the first added tokens.
fn small_tokenizer(json: &[u8]) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(json).expect("a tokenizer");
    let model = json["model"].as_object_mut().expect("a model");
    let merges = model["merges"].as_array_mut().expect("merges");
    merges.truncate(MERGES);
    let made: Vec<String> = merges
        .iter()
        .map(|pair| format!("{}{}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let vocab = model["vocab"].as_object_mut().expect("a vocabulary");
    vocab.retain(|word, _| word.chars().count() == 1 || made.contains(word));
    for (id, value) in vocab.values_mut().enumerate() {
        *value = id.into();
    }
    let n = vocab.len();
    let added = json["added_tokens"].as_array_mut().expect("added tokens");
    added.truncate(4);
    for (i, token) in added.iter_mut().enumerate() {
        token["id"] = (n + i).into();
    }
    json.to_string().into_bytes()
}

/// The weights of [`CONFIG`].
fn weights() -> Vec<u8> {
    let config = Config::from_json(CONFIG.as_bytes()).expect("a config");
    let shapes = tensors(&config);
    let zeros = vec![0; 2 * shapes.iter().map(|shape| shape.elements()).max().unwrap_or(0)];
    let views = shapes.iter().map(|shape| {
        let bytes = &zeros[..2 * shape.elements()];
        let view = TensorView::new(safetensors::Dtype::BF16, shape.shape.clone(), bytes);
        (shape.tensor.name(), view.expect("a tensor"))
    });
    safetensors::serialize(views, None).expect("a file")
}

/// A tensor beside a packed matrix of `[n, k]`: its name, format and shape.
type Side = (&'static str, Format, fn(usize, usize) -> Vec<usize>);

/// Each packed format, and the tensors of its matrices.
const PACKED: &[(&str, &[Side])] = &[
    (
        "fp8_block",
        &[
            ("weight", Format::F8_E4M3, |n, k| vec![n, k]),
            ("weight_scale_inv", Format::BF16, |_, _| vec![1, 1]),
        ],
    ),
    (
        "fp8_tensor",
        &[
            ("weight", Format::F8_E4M3, |n, k| vec![n, k]),
            ("weight_scale", Format::F32, |_, _| vec![]),
        ],
    ),
    (
        "modelopt_nvfp4",
        &[
            ("weight", Format::U8, |n, k| vec![n, k / 2]),
            ("weight_scale", Format::F8_E4M3, |n, k| vec![n, k.div_ceil(16)]),
            ("weight_scale_2", Format::F32, |_, _| vec![]),
        ],
    ),
    (
        "awq",
        &[
            ("qweight", Format::I32, |n, k| vec![k, n / 8]),
            ("qzeros", Format::I32, |n, k| vec![k.div_ceil(16), n / 8]),
            ("scales", Format::F16, |n, k| vec![k.div_ceil(16), n]),
        ],
    ),
    (
        "gptq4",
        &[
            ("qweight", Format::I32, |n, k| vec![k / 8, n]),
            ("qzeros", Format::I32, |n, k| vec![k.div_ceil(16), n / 8]),
            ("scales", Format::F16, |n, k| vec![k.div_ceil(16), n]),
            ("g_idx", Format::I32, |_, k| vec![k]),
        ],
    ),
    (
        "gptq8",
        &[
            ("qweight", Format::I32, |n, k| vec![k / 4, n]),
            ("qzeros", Format::I32, |n, _| vec![1, n / 4]),
            ("scales", Format::F16, |n, _| vec![1, n]),
        ],
    ),
    (
        "bnb_int8",
        &[("weight", Format::I8, |n, k| vec![n, k]), ("SCB", Format::F32, |n, _| vec![n])],
    ),
    (
        "ct_float",
        &[
            ("weight", Format::F8_E4M3, |n, k| vec![n, k]),
            ("weight_scale", Format::BF16, |n, _| vec![n, 1]),
        ],
    ),
    (
        "ct_int8",
        &[
            ("weight", Format::I8, |n, k| vec![n, k]),
            ("weight_scale", Format::BF16, |_, _| vec![1]),
        ],
    ),
    (
        "ct_int4",
        &[
            ("weight_packed", Format::I32, |n, k| vec![n, k / 8]),
            ("weight_scale", Format::BF16, |n, k| vec![n, k.div_ceil(16)]),
            ("weight_zero_point", Format::I32, |n, k| vec![n / 8, k.div_ceil(16)]),
            ("weight_shape", Format::I64, |_, _| vec![2]),
        ],
    ),
    (
        "ct_nvfp4",
        &[
            ("weight_packed", Format::U8, |n, k| vec![n, k / 2]),
            ("weight_scale", Format::F8_E4M3, |n, k| vec![n, k.div_ceil(16)]),
            ("weight_global_scale", Format::F32, |_, _| vec![1]),
        ],
    ),
    (
        "ct_mxfp4",
        &[
            ("weight_packed", Format::U8, |n, k| vec![n, k / 2]),
            ("weight_scale", Format::U8, |n, k| vec![n, k.div_ceil(32)]),
        ],
    ),
    (
        "ct_mxfp8",
        &[
            ("weight", Format::F8_E4M3, |n, k| vec![n, k]),
            ("weight_scale", Format::U8, |n, k| vec![n, k.div_ceil(32)]),
        ],
    ),
    (
        "ct_words8",
        &[
            ("weight_packed", Format::I32, |n, k| vec![n, k / 4]),
            ("weight_scale", Format::BF16, |n, _| vec![n, 1]),
            ("weight_shape", Format::I64, |_, _| vec![2]),
        ],
    ),
    (
        "ct_int4_order",
        &[
            ("weight_packed", Format::I32, |n, k| vec![n, k / 8]),
            ("weight_scale", Format::BF16, |n, k| vec![n, k.div_ceil(16)]),
            ("weight_zero_point", Format::I8, |n, k| vec![n, k.div_ceil(16)]),
            ("weight_g_idx", Format::I32, |_, k| vec![k]),
            ("weight_shape", Format::I64, |_, _| vec![2]),
        ],
    ),
    (
        "bnb_nf4",
        &[
            ("weight", Format::U8, |n, k| vec![n * k / 2, 1]),
            ("weight.absmax", Format::F32, |n, k| vec![(n * k).div_ceil(64)]),
            ("weight.quant_map", Format::F32, |_, _| vec![16]),
            (STATE, Format::U8, |n, k| vec![state(n, k).len()]),
        ],
    ),
    (
        "bnb_nested",
        &[
            ("weight", Format::U8, |n, k| vec![n * k / 2, 1]),
            ("weight.absmax", Format::U8, |n, k| vec![(n * k).div_ceil(64)]),
            ("weight.nested_absmax", Format::F32, |n, k| vec![(n * k).div_ceil(64 * 4)]),
            ("weight.nested_quant_map", Format::F32, |_, _| vec![256]),
            ("weight.quant_map", Format::F32, |_, _| vec![16]),
            (STATE, Format::U8, |n, k| vec![state(n, k).len()]),
        ],
    ),
];

/// The settings that bitsandbytes stores with a matrix, and their tensor.
const STATE: &str = "weight.quant_state.bitsandbytes__nf4";

fn state(n: usize, k: usize) -> String {
    json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k],
        "nested_blocksize": 4, "nested_offset": 0.25})
    .to_string()
}

/// A packed model: every number of a format of floats is small, all others are zero.
fn packed(sides: &[Side]) -> Vec<u8> {
    let config = Config::from_json(PACKED_CONFIG.as_bytes()).expect("a config");
    let mut all = Vec::new();
    for shape in tensors(&config) {
        let name = shape.tensor.name();
        let is_packed = shape.shape.len() == 2 && shape.tensor != Tensor::Embed;
        let Some(module) = name.strip_suffix(".weight").filter(|_| is_packed) else {
            let zeros = vec![0; 2 * shape.elements()];
            all.push((name, Format::BF16, shape.shape, zeros));
            continue;
        };
        let (n, k) = (shape.rows(), shape.row());
        all.extend(sides.iter().map(|(suffix, format, shape)| {
            let shape = shape(n, k);
            let elements: usize = shape.iter().product();
            let bytes = match format {
                // The shape of the matrix.
                Format::I64 => [n, k].iter().flat_map(|n| (*n as u64).to_le_bytes()).collect(),
                Format::F32 => 0.5_f32.to_le_bytes().repeat(elements),
                _ if *suffix == STATE => state(n, k).into_bytes(),
                _ => vec![0; elements * format.bitsize() / 8],
            };
            (format!("{module}.{suffix}"), *format, shape, bytes)
        }));
    }
    let views = all.iter().map(|(name, format, shape, bytes)| {
        (name, TensorView::new(*format, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize(views, None).expect("a file")
}

/// Chats of the test data's conversations, and one of each kind of question.
fn requests(conversations: &[u8]) {
    let conversations: Value = serde_json::from_slice(conversations).expect("conversations");
    for (name, body) in conversations.as_object().expect("conversations by name") {
        write("request", name, body.to_string().as_bytes());
    }
    let messages = json!([{"role": "user", "content": "Who is the captain?"}]);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string",
        "maxLength": 9}, "age": {"type": "integer", "minimum": 1}}, "required": ["name"]});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": schema}});
    let chats = [
        json!({"model": "tiny", "messages": messages, "temperature": 0.5, "top_p": 0.9, "seed": 1,
            "stop": ["\n", "x"], "n": 2, "stream": true, "stream_options": {"include_usage": true},
            "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 9}),
        json!({"messages": messages, "response_format": {"type": "json_schema",
            "json_schema": {"name": "a", "schema": schema, "strict": true}}}),
        json!({"messages": messages, "tools": [tool], "tool_choice": "required"}),
        json!({"messages": messages, "guided_regex": "[a-f]{2,5}(x|y)*"}),
        json!({"messages": messages, "guided_choice": ["yes", "no"]}),
        json!({"messages": messages, "reuse": "anchored", "repair": "link:8",
            "chat_template_kwargs": {"enable_thinking": false}, "logit_bias": {"5": -100}}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a",
            "cache_control": {"type": "ephemeral"}}]}, {"role": "assistant", "content": "b"}],
            "continue_final_message": true}),
    ];
    for (i, chat) in chats.iter().enumerate() {
        write("request", &format!("chat-{i}"), chat.to_string().as_bytes());
    }
    let completions = [
        json!({"prompt": "The captain", "max_tokens": 5, "echo": true, "logprobs": 2}),
        json!({"prompt": [[1, 2, 3], [4]], "min_p": 0.1, "top_k": 5, "frequency_penalty": 0.5}),
        json!({"prompt": ["<|im_end|>"], "parse_special": true, "n": 2, "best_of": 2}),
    ];
    for (i, completion) in completions.iter().enumerate() {
        write("request", &format!("completion-{i}"), format!("0{completion}").as_bytes());
    }
    dialects(&schema);
}

/// Bodies of other dialects than OpenAI's chats.
fn dialects(schema: &Value) {
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": schema});
    let function = json!({"type": "function", "name": "look", "parameters": schema});
    let ollama_tool = json!({"type": "function", "function": {"name": "look",
        "parameters": schema}});
    let bodies = [
        (
            "messages-0",
            '1',
            json!({"model": "tiny", "max_tokens": 9, "stream": true,
            "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "b"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "c"},
                    {"type": "tool_use", "id": "d", "name": "look", "input": {"name": "e"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "d",
                    "is_error": true, "content": [{"type": "text", "text": "f"}]}]}],
            "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "stop_sequences": ["\n"], "metadata": {"user_id": "u"}}),
        ),
        (
            "messages-1",
            '1',
            json!({"model": "tiny", "max_tokens": 9, "system": "a",
            "messages": [{"role": "user", "content": [{"type": "document", "title": "t",
                "source": {"type": "text", "data": "b"}}]}, {"role": "assistant", "content": "c"}],
            "thinking": {"type": "enabled", "budget_tokens": 5}}),
        ),
        (
            "messages-2",
            '1',
            json!({"model": "tiny", "max_tokens": 9,
            "messages": [{"role": "user", "content": "b"}],
            "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        ),
        (
            "responses-0",
            '2',
            json!({"model": "tiny", "instructions": "a", "input": [
                {"role": "developer", "content": "b"},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "c"}]},
                {"type": "reasoning", "summary": [], "content": [
                    {"type": "reasoning_text", "text": "d"}]},
                {"type": "function_call", "call_id": "e", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "e", "output": "f"}],
            "tools": [function], "tool_choice": {"type": "function", "name": "look"},
            "max_output_tokens": 5, "reasoning": {"effort": "low"}, "metadata": {"a": "b"},
            "include": ["message.output_text.logprobs"], "truncation": "auto"}),
        ),
        (
            "responses-1",
            '2',
            json!({"model": "tiny", "input": "a", "store": false,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}),
        ),
        (
            "ollama-0",
            '3',
            json!({"model": "tiny:latest", "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "thinking": "b", "tool_calls": [
                    {"function": {"name": "look", "arguments": {"name": "c"}}}]},
                {"role": "tool", "tool_name": "look", "content": "d"}],
            "tools": [ollama_tool], "think": "low", "keep_alive": 0, "options": {"num_predict": -2,
                "temperature": 0.5, "stop": ["x"], "num_ctx": 99, "repeat_penalty": 1.1}}),
        ),
        (
            "ollama-1",
            '3',
            json!({"model": "tiny", "prompt": "a<|im_end|>", "raw": true,
            "format": schema, "stream": false}),
        ),
        ("ollama-2", '3', json!({"model": "tiny", "prompt": "a", "system": "b", "format": "json"})),
    ];
    for (name, first, body) in bodies {
        write("request", name, format!("{first}{body}").as_bytes());
    }
}

/// A chunk file, and parcels with and without it.
fn rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = Store::open(&folder.path().join("store"), 1 << 20).expect("a store");
    let metadata = BTreeMap::from([("name".to_owned(), "a.txt".to_owned())]);
    let chunk = Chunk::new(parcel_tokenizer(), Kind::Context, "A text.", metadata);
    let chunk = Chunk { created: std::time::UNIX_EPOCH, uses: 1, ..chunk.expect("a chunk") };
    let root =
        blake3::Hasher::new().update(b"weft kv rows 1\0").update(FINGERPRINT.as_bytes()).finalize();
    let parent = KvKey::from_bytes(*root.as_bytes());
    let coarse = RowForm::Int8 { group: 2 };
    let forms = [
        ("int8", Dtype::Bf16, coarse),
        ("int8-f32", Dtype::F32, coarse),
        ("bf16", Dtype::Bf16, RowForm::Full),
        ("f32", Dtype::F32, RowForm::Full),
    ];
    for (name, dtype, form) in forms {
        let header = Header {
            fingerprint: FINGERPRINT.to_owned(),
            dtype,
            form,
            layers: 2,
            kv_width: 2,
            reuse: form.reuse().to_owned(),
            parent,
            home_position: 0,
            tokens: chunk.tokens.clone(),
            prefill_us: 12,
        };
        let key = header.key();
        let bytes = vec![1; header.full_bytes().expect("a size")];
        let rows = HostRows { k: bytes.clone(), v: bytes };
        store.remove(&key);
        assert_eq!(store.put(&key, &header, &rows), Put::Stored);
        let file = folder.path().join(name);
        store.export(&key, &file).expect("a chunk file");
        write("chunk_file", name, &fs::read(&file).expect("a chunk file"));
        if form.is_coarse() {
            store.remove(&key);
        }
    }
    let homes = parcel_homes(&chunk);
    let signed = SignedRows { store: &mut store, homes: &homes, key: &KEY };
    for (name, rows) in [("rows", Some(signed)), ("text", None)] {
        let file = folder.path().join(name).with_extension("parcel");
        let files = usize::from(rows.is_some());
        assert_eq!(export(&chunk, rows, &file).expect("a parcel").files, files);
        write("parcel", name, &fs::read(&file).expect("a parcel"));
    }
}
