//! Writes GGUF files for tests, whole and right or with any part wrong.

use serde_json::Value as Json;

/// A file to write. Every field may be changed before it is written.
#[derive(Clone)]
pub struct GgufFile {
    pub version: u32,
    pub alignment: Option<u32>,
    /// Each key with the bytes of its type and value.
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Stored>,
}

/// A tensor to write.
#[derive(Clone)]
pub struct Stored {
    pub name: String,
    /// The length of a row first, as files have it.
    pub shape: Vec<u64>,
    pub kind: u32,
    /// Where it begins in the data; after the one before, if absent.
    pub offset: Option<u64>,
    pub bytes: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl GgufFile {
    /// A qwen3 model with one layer and zeros as weights: 32 wide, 4 words, tied head.
    pub fn tiny() -> Self {
        let mut file = Self { version: 3, alignment: None, keys: Vec::new(), tensors: Vec::new() };
        file.set_text("general.architecture", "qwen3");
        for (key, number) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 16),
        ] {
            file.set_u32(&format!("qwen3.{key}"), number);
        }
        file.set_f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6);
        file.set_f32("qwen3.rope.freq_base", 10_000.0);
        for (name, rows) in [
            ("token_embd", 4),
            ("blk.0.attn_q", 32),
            ("blk.0.attn_k", 16),
            ("blk.0.attn_v", 16),
            ("blk.0.attn_output", 32),
            ("blk.0.ffn_gate", 32),
            ("blk.0.ffn_up", 32),
            ("blk.0.ffn_down", 32),
        ] {
            file.add(name, vec![32, rows], 8, 34 * rows as usize);
        }
        for (name, width) in [
            ("output_norm", 32),
            ("blk.0.attn_norm", 32),
            ("blk.0.ffn_norm", 32),
            ("blk.0.attn_q_norm", 16),
            ("blk.0.attn_k_norm", 16),
        ] {
            file.add(name, vec![width], 0, 4 * width as usize);
        }
        file
    }

    fn add(&mut self, name: &str, shape: Vec<u64>, kind: u32, n_bytes: usize) {
        let (name, bytes) = (format!("{name}.weight"), vec![0; n_bytes]);
        self.tensors.push(Stored { name, shape, kind, offset: None, bytes });
    }

    /// Sets a key to the bytes of a type and a value.
    pub fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.remove(key);
        self.keys.push((key.to_owned(), [&kind.to_le_bytes()[..], value].concat()));
    }

    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    pub fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, 4, &value.to_le_bytes());
    }

    pub fn set_f32(&mut self, key: &str, value: f32) {
        self.set(key, 6, &value.to_le_bytes());
    }

    pub fn set_flag(&mut self, key: &str, value: bool) {
        self.set(key, 7, &[u8::from(value)]);
    }

    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, 8, &text(value));
    }

    /// Sets a key to a list: the type of its elements, their number, their bytes.
    pub fn set_list(&mut self, key: &str, kind: u32, count: usize, elements: &[u8]) {
        let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        self.set(key, 9, &[&head[..], elements].concat());
    }

    pub fn set_texts(&mut self, key: &str, texts: &[String]) {
        let elements: Vec<u8> = texts.iter().flat_map(|t| text(t)).collect();
        self.set_list(key, 8, texts.len(), &elements);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    /// Adds the tokenizer of a `tokenizer.json`, as llama.cpp's converter does.
    pub fn add_tokenizer(&mut self, json: &Json, pre: &str, vocab: usize) {
        const NORMAL: i32 = 1;
        const UNUSED: i32 = 5;
        let mut tokens: Vec<String> = (0..vocab).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED; vocab];
        for (token, id) in json["model"]["vocab"].as_object().expect("a vocabulary") {
            let id = id.as_u64().expect("an id") as usize;
            (tokens[id], types[id]) = (token.clone(), NORMAL);
        }
        for added in json["added_tokens"].as_array().expect("added tokens") {
            let id = added["id"].as_u64().expect("an id") as usize;
            let content = added["content"].as_str().expect("a text");
            let special = added["special"] == true || content.starts_with("<|");
            (tokens[id], types[id]) = (content.to_owned(), if special { 3 } else { 4 });
        }
        let merges: Vec<String> = json["model"]["merges"]
            .as_array()
            .expect("merges")
            .iter()
            .map(|merge| match merge {
                Json::String(merge) => merge.clone(),
                pair => format!("{} {}", pair[0].as_str().expect(""), pair[1].as_str().expect("")),
            })
            .collect();
        self.set_text("tokenizer.ggml.model", "gpt2");
        self.set_text("tokenizer.ggml.pre", pre);
        self.set_texts("tokenizer.ggml.tokens", &tokens);
        self.set_texts("tokenizer.ggml.merges", &merges);
        let types: Vec<u8> = types.iter().flat_map(|kind| kind.to_le_bytes()).collect();
        self.set_list("tokenizer.ggml.token_type", 5, vocab, &types);
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut keys = self.clone();
        if let Some(alignment) = self.alignment {
            keys.set_u32("general.alignment", alignment);
        }
        let alignment = self.alignment.unwrap_or(32).max(1) as usize;
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((keys.keys.len() as u64).to_le_bytes());
        for (key, value) in &keys.keys {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(alignment) as u64;
        }
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(alignment), 0);
            bytes.extend(&tensor.bytes);
        }
        bytes
    }
}
