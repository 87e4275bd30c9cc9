//! Compares the tokenizer with Hugging Face's: with ids from Python (`tools/golden_prompts.py`) and
//! with the crate's own pipeline, on a tiny tokenizer and, if `WEFT_TEST_QWEN3` names its folder,
//! on Qwen3's.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};
use weft_core::tokenizer::{Tokenizer, TokenizerError};
use weft_testing::{Missing, skip};

use crate::cpu_time;

static TINY: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_file(data("tokenizer.json")).unwrap());

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

/// Qwen3's `tokenizer.json`; without it, the test counts as skipped.
fn qwen3() -> Option<PathBuf> {
    let folder = std::env::var_os("WEFT_TEST_QWEN3");
    if folder.is_none() {
        skip(Missing::Tokenizer, &"WEFT_TEST_QWEN3 is not set");
    }
    Some(Path::new(&folder?).join("tokenizer.json"))
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).copied().collect()
}

fn check_texts(tokenizer: &Tokenizer, expected: &Value) {
    let entries = expected.as_array().unwrap();
    assert!(entries.len() >= 30);
    for entry in entries {
        let text = entry["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_text(text).unwrap(), ids(&entry["data"]), "{text:?}");
        assert_eq!(tokenizer.encode_markup(text).unwrap(), ids(&entry["markup"]), "{text:?}");
    }
}

#[test]
fn ids_equal_hugging_faces() {
    check_texts(&TINY, &read("texts.json"));
}

#[test]
fn ids_equal_hugging_faces_for_qwen3() {
    let Some(path) = qwen3() else { return };
    let tokenizer = Tokenizer::from_file(path).unwrap();
    check_texts(&tokenizer, &read("texts_qwen3.json"));
    assert_eq!(tokenizer.vocab_size(), 151_669);
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(151_645));
    assert!(tokenizer.bos().is_empty());
}

#[test]
fn tokens_know_their_bytes_and_kind() {
    let im_end = TINY.id_of("<|im_end|>").unwrap();
    let think = TINY.id_of("<think>").unwrap();
    assert_eq!(TINY.token_bytes(im_end), Some(&b"<|im_end|>"[..]));
    assert!(TINY.is_special(im_end) && !TINY.is_special(think) && !TINY.is_special(0));
    assert_eq!(TINY.token_bytes(TINY.vocab_size()), None);
    assert_eq!(TINY.token_bytes(u32::MAX), None);
    let space = TINY.id_of(" ").unwrap();
    assert_eq!(TINY.encode_text(" ").unwrap(), [space]);
    assert_eq!(TINY.id_of("no such token"), None);
    let text = TINY.encode_markup("é<|im_end|>x<think>").unwrap();
    assert_eq!(TINY.decode(&text, false), "é<|im_end|>x<think>");
    assert_eq!(TINY.decode(&text, true), "éx<think>");
    assert_eq!(TINY.decode(&TINY.encode_text("é").unwrap()[..0], true), "");
    let partial = TINY.encode_text("🎉").unwrap();
    assert_eq!(TINY.decode(&partial[..1], true), "\u{fffd}");
}

/// Text with difficult parts: white space runs, added tokens, digits, marks, noncharacters.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ \t\r\n]{1,5}",
        "[a-zA-Z]{1,8}",
        "[0-9]{1,4}",
        prop::sample::select(vec![
            "<|im_end|>",
            "<|im_start|>",
            "<think>",
            "</think>",
            "'s",
            "'LL",
            "e\u{301}",
            "\u{301}",
            "\u{212b}",
            "人工",
            "한",
            "🎉",
            "\u{fdd0}",
            "\u{ffff}",
            "\u{0}",
            "\u{a0}",
            ".",
            "<|",
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_comes_back_and_has_no_added_token(text in any_text()) {
        let ids = TINY.encode_text(&text).unwrap();
        let normal = TINY.normalize(&text);
        prop_assert_eq!(bytes(&TINY, &ids), normal.as_bytes());
        let first_added = TINY.id_of("<|endoftext|>").unwrap();
        prop_assert!(ids.iter().all(|&id| id < first_added));
    }

    #[test]
    fn markup_comes_back(text in any_text()) {
        let ids = TINY.encode_markup(&text).unwrap();
        let joined = String::from_utf8(bytes(&TINY, &ids)).unwrap();
        // Added tokens cut the text before it is normalised.
        prop_assert_eq!(TINY.normalize(&joined), TINY.normalize(&text));
    }

    #[test]
    fn equals_the_crates_own_pipeline(text in any_text()) {
        static CRATE: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
            tokenizers::Tokenizer::from_file(data("tokenizer.json")).unwrap()
        });
        let mut normalized = tokenizers::NormalizedString::from(text.as_str());
        CRATE.get_normalizer().unwrap().normalize(&mut normalized).unwrap();
        prop_assert_eq!(TINY.normalize(&text), normalized.get());
        let mut pieces = PreTokenizedString::from(normalized);
        CRATE.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
        pieces.tokenize(|piece| CRATE.get_model().tokenize(piece.get())).unwrap();
        let data = pieces.into_encoding(None, 0, OffsetType::None).unwrap();
        prop_assert_eq!(TINY.encode_text(&text).unwrap(), data.get_ids());
        let markup = CRATE.encode_fast(text.as_str(), false).unwrap();
        prop_assert_eq!(TINY.encode_markup(&text).unwrap(), markup.get_ids());
    }

    #[test]
    fn broken_files_are_errors(cut in 0usize..15_000, byte in any::<u8>()) {
        let mut file = std::fs::read(data("tokenizer.json")).unwrap();
        let at = cut % file.len();
        file[at] = byte;
        let _ = Tokenizer::from_bytes(&file);
        prop_assert!(Tokenizer::from_bytes(&file[..at]).is_err());
    }
}

/// The tiny tokenizer's file, changed.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut file = read("tokenizer.json");
    change(&mut file);
    Tokenizer::from_bytes(&serde_json::to_vec(&file).unwrap())
}

#[test]
fn hostile_files_are_errors_that_say_why() {
    let message = |result: Result<Tokenizer, TokenizerError>| result.unwrap_err().to_string();
    let says = |result, part: &str| {
        let message = message(result);
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    };
    says(Tokenizer::from_bytes(b""), "malformed");
    says(Tokenizer::from_bytes(b"[]"), "tokenizer.json is malformed");
    says(Tokenizer::from_bytes(b"[]"), "download it again");
    says(Tokenizer::from_bytes("[".repeat(100_000).as_bytes()), "malformed");
    says(Tokenizer::from_bytes(b"{\"version\": \"1.0\"}"), "model");
    let nested = format!("{{\"model\": {{}}, \"decoder\": {}", "{\"decoders\":[".repeat(10_000));
    says(Tokenizer::from_bytes(nested.as_bytes()), "recursion limit");
    says(changed(|f| f["model"]["type"] = "Unigram".into()), "\"Unigram\"");
    says(changed(|f| f["decoder"] = Value::Null), "decoder is none");
    says(changed(|f| f["decoder"] = json!({ "type": "Metaspace" })), "\"Metaspace\"");
    says(changed(|f| f["model"]["vocab"] = json!([])), "a map of tokens");
    says(changed(|f| f["model"]["vocab"] = json!({})), "no token for the byte 0x00");
    says(changed(|f| f["model"]["vocab"]["big"] = json!(4_294_967_295_u32)), "above the limit");
    says(changed(|f| f["model"]["vocab"]["big"] = json!(1_u64 << 40)), "u32");
    says(changed(|f| f["model"]["vocab"]["neg"] = json!(-1)), "u32");
    says(changed(|f| f["model"]["vocab"]["dup"] = json!(1)), "used twice");
    says(changed(|f| f["model"]["merges"] = json!([["q", "zzz"]])), "\"zzz\"");
    // Longer than any token of the vocabulary: the crate would index out of a buffer.
    says(changed(|f| f["model"]["merges"] = json!([["assistant", "assistant"]])), "has no id");
    says(changed(|f| f["model"]["merges"] = json!([["a", "b", "c"]])), "two parts");
    says(changed(|f| f["model"]["merges"] = json!(["ab"])), "a merge");
    says(changed(|f| f["model"]["merges"] = json!(7)), "malformed");
    says(changed(|f| f["model"]["dropout"] = json!(0.1)), "at random");
    says(changed(|f| f["model"]["end_of_word_suffix"] = json!("</w>")), "suffix");
    says(changed(|f| f["added_tokens"][0]["id"] = json!(4_000_000_000_u32)), "above the limit");
    says(changed(|f| f["added_tokens"][0]["id"] = f["added_tokens"][1]["id"].clone()), "same id");
    says(changed(|f| f["normalizer"] = json!({ "type": "Lowercase" })), "\"Lowercase\"");
    says(changed(|f| f["pre_tokenizer"] = Value::Null), "ByteLevel");
    says(
        changed(|f| f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(".into()),
        "expression",
    );
    says(
        changed(|f| f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into()),
        "space before",
    );
    says(
        changed(|f| f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into()),
        "Removed",
    );
    let missing = Tokenizer::from_file(data("no such file"));
    says(missing, "cannot read");
}

/// Every step cuts or copies the text again, and each expression takes megabytes when compiled.
#[test]
fn steps_and_expressions_are_limited() {
    let nfc = |n: usize| {
        let parts = vec![json!({ "type": "NFC" }); n];
        changed(|f| f["normalizer"] = json!({ "type": "Sequence", "normalizers": parts }))
    };
    assert!(nfc(8).is_ok());
    let error = nfc(9).unwrap_err().to_string();
    assert!(error.contains("normalizer has more than 8 steps"), "{error}");
    let split = |expressions: &[String]| {
        let split = |text: &String| json!({ "type": "Split", "pattern": { "Regex": text }, "behavior": "Isolated" });
        let mut parts: Vec<Value> = expressions.iter().map(split).collect();
        parts.push(json!({ "type": "ByteLevel", "use_regex": false }));
        changed(|f| {
            f["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Sequence", "pretokenizers": parts }] });
        })
    };
    let says = |expressions: &[String], part: &str| {
        let error = split(expressions).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("take another"), "{error}");
    };
    assert!(split(&vec!["a".to_owned(); 15]).is_ok());
    says(&vec!["a".to_owned(); 16], "pre-tokenizer has 17 steps, more than the limit of 16");
    says(&vec!["a".to_owned(); 20_000], "20001 steps");
    assert!(split(&["a".repeat(4096), "b".repeat(4096)]).is_ok());
    says(
        &["a".repeat(4096), "b".repeat(4097)],
        "8193 bytes of expressions, more than the limit of 8192",
    );
    says(&[r"(\w\w\w\w){16}".to_owned()], "compiled, it has more than 2097152 bytes");
    for text in [
        r"\w{65}",
        r"(?=a)\w{65}",
        r"(\w{2,9}){8,}",
        r"(?x)a{ 1 , 65 }",
        r"\\x{65}",
        r"\x41{65}",
        r"\p{L}{65}",
        r"\pL{65}",
        r"[{]a{65}",
        r"\w{99999999999999999999}",
    ] {
        says(&[text.to_owned()], "and the limit is 64");
    }
    assert!(split(&[r"\p{N}{1,3}[\x{200d}\x{1F600}]{21}(?=a)".to_owned()]).is_ok());
    let text = changed(|f| {
        let long = json!({ "type": "Split", "pattern": { "String": "!".repeat(4097) },
            "behavior": "Isolated" });
        f["pre_tokenizer"]["pretokenizers"][0] = long;
    });
    assert!(text.unwrap_err().to_string().contains("8194 bytes of"));
}

/// The pre-tokenizers with the most steps and the largest expressions.
#[test]
fn the_pre_tokenizers_of_real_models_are_within_the_limits() {
    let v3 = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
    let o200k = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    for expressions in [
        &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", v3][..],
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}", r"\s+$"],
        &[o200k],
    ] {
        let split = |text: &&str| json!({ "type": "Split", "pattern": { "Regex": text }, "behavior": "Isolated" });
        let mut parts: Vec<Value> = expressions.iter().map(split).collect();
        parts.push(json!({ "type": "ByteLevel", "use_regex": false }));
        let tokenizer = changed(|f| {
            f["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": parts });
        });
        let tokenizer = tokenizer.unwrap();
        let text = "It's 12345 \r\n人工 e\u{301}  ";
        assert_eq!(
            bytes(&tokenizer, &tokenizer.encode_text(text).unwrap()),
            tokenizer.normalize(text).as_bytes()
        );
    }
}

#[test]
fn tokens_around_a_text_are_limited() {
    let around = |n_pieces: usize, n_ids: usize| {
        let piece = json!({ "SpecialToken": { "id": "a", "type_id": 0 } });
        changed(|f| {
            f["post_processor"] = json!({ "type": "TemplateProcessing",
                "single": vec![piece; n_pieces], "special_tokens": { "a": { "ids": vec![1; n_ids] } } });
        })
    };
    assert_eq!(around(8, 8).unwrap().bos().len(), 64);
    for (n_pieces, n_ids) in [(5, 13), (65, 1), (1, 65), (1000, 10_000)] {
        let error = around(n_pieces, n_ids).unwrap_err().to_string();
        assert!(error.contains("post-processor") && error.contains("more than 64"), "{error}");
    }
}

#[test]
fn a_file_over_the_limit_is_refused_unread() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((64 << 20) + 1).unwrap();
    assert!(matches!(Tokenizer::from_file(file.path()), Err(TokenizerError::TooLarge { .. })));
}

#[test]
fn other_spellings_of_the_same_tokenizer_load() {
    let text = "The weaver's 12 cafés\n\n  <|im_end|>";
    let expected = TINY.encode_text(text).unwrap();
    let legacy = changed(|f| {
        for merge in f["model"]["merges"].as_array_mut().unwrap() {
            *merge =
                format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
        }
    });
    assert_eq!(legacy.unwrap().encode_text(text).unwrap(), expected);
    let wrapped = changed(|f| {
        f["decoder"] = json!({ "type": "Sequence", "decoders": [{ "type": "ByteLevel" }] });
        f["normalizer"] = json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }] });
    });
    assert_eq!(wrapped.unwrap().encode_text(text).unwrap(), expected);
}

#[test]
fn a_template_post_processor_gives_the_bos() {
    let bos = TINY.id_of("<|begin_of_text|>").unwrap();
    let llama = changed(|f| {
        f["post_processor"] = json!({ "type": "Sequence", "processors": [
            { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true },
            { "type": "TemplateProcessing",
              "single": [{ "SpecialToken": { "id": "<|begin_of_text|>", "type_id": 0 } },
                         { "Sequence": { "id": "A", "type_id": 0 } }],
              "pair": [],
              "special_tokens": { "<|begin_of_text|>":
                  { "id": "<|begin_of_text|>", "ids": [bos], "tokens": ["<|begin_of_text|>"] } } },
        ] });
    });
    let llama = llama.unwrap();
    assert_eq!(llama.bos(), [bos]);
    assert_eq!(llama.encode_with_bos("a").unwrap()[0], bos);
    assert_eq!(llama.encode_with_bos("a").unwrap()[1..], llama.encode_text("a").unwrap());
    assert_eq!(TINY.encode_with_bos("a").unwrap(), TINY.encode_text("a").unwrap());
    let missing = changed(|f| {
        f["post_processor"] = json!({ "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "x" } }],
            "special_tokens": { "x": { "ids": [1_000_000] } } });
    });
    assert!(missing.unwrap_err().to_string().contains("post-processor"));
}

#[test]
fn a_template_post_processor_gives_what_follows_a_text() {
    let [bos, eos] = ["<|im_start|>", "<|im_end|>"].map(|name| TINY.id_of(name).unwrap());
    let around = |single: Value| {
        let both = changed(|f| {
            f["post_processor"] = json!({ "type": "TemplateProcessing", "single": single,
                "special_tokens": { "b": { "ids": [bos] }, "e": { "ids": [eos] } } });
        });
        let both = both.unwrap();
        (both.bos().to_vec(), both.eos().to_vec())
    };
    let [before, text, after] = [
        json!({ "SpecialToken": { "id": "b", "type_id": 0 } }),
        json!({ "Sequence": { "id": "A", "type_id": 0 } }),
        json!({ "SpecialToken": { "id": "e", "type_id": 0 } }),
    ];
    assert_eq!(around(json!([before, text, after])), (vec![bos], vec![eos]));
    assert_eq!(around(json!([text, after])), (vec![], vec![eos]));
    assert_eq!(around(json!([before, after, text])), (vec![bos, eos], vec![]));
}

#[test]
fn an_added_token_of_the_vocabulary_has_the_vocabulary_s_id() {
    let word = "\u{120}the";
    let id = read("tokenizer.json")["model"]["vocab"][word].as_u64().unwrap();
    let tokenizer = changed(|f| {
        let added = json!({ "id": 2040, "content": word, "special": true, "normalized": false });
        f["added_tokens"].as_array_mut().unwrap().push(added);
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.id_of(word), Some(id as u32));
    assert!(tokenizer.is_special(id as u32) && !tokenizer.is_special(2040));
    assert_eq!(tokenizer.encode_markup(word).unwrap(), [id as u32]);
}

#[test]
fn whole_words_skip_merging_where_the_file_says_so() {
    let mut odd = 0;
    let tokenizer = changed(|f| {
        f["model"]["ignore_merges"] = true.into();
        odd = f["model"]["vocab"].as_object().unwrap().len() + 100;
        f["model"]["vocab"]["Ġxyzzy"] = odd.into();
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.encode_text(" xyzzy").unwrap(), [odd as u32]);
    assert_ne!(TINY.encode_text(" xyzzy").unwrap().len(), 1);
}

#[test]
fn a_megabyte_takes_less_than_a_second() {
    let Some(path) = qwen3() else { return };
    let start = cpu_time();
    let tokenizer = Tokenizer::from_file(path).unwrap();
    let load = cpu_time() - start;
    println!("load: {load:?}");
    assert!(load < Duration::from_secs(1));
    let mixed = "The quick brown fox isn't lazy: 1234567890 o'clock.\n\nfn main() { let x: Vec<u32> = \
         (0..10).map(|i| i * 2).collect(); }\n\t\tif (a && b) { return c[i] >> 3; }\n\
         人工智能是计算机科学的一个分支。日本語のテキスト。한국어도 있습니다. 🎉🚀👩‍👩‍👧‍👦 café \
         Ελληνικά русский العربية                    0000000000\r\n";
    let units = [
        mixed,
        "a",
        " ",
        "7",
        "人工智能是计算机科学",
        "\n",
        "!",
        "e\u{301}",
        " a",
        "\n    x",
        " \t",
    ];
    for unit in units {
        let text = unit.repeat((1 << 20) / unit.len());
        let start = cpu_time();
        let ids = tokenizer.encode_text(&text).unwrap();
        let took = cpu_time() - start;
        let name: String = unit.chars().take(8).collect();
        println!("{name:?}…: {} bytes, {} tokens, {took:?}", text.len(), ids.len());
        assert!(took < Duration::from_secs(1), "{unit:?} took {took:?}");
        assert_eq!(bytes(&tokenizer, &ids), tokenizer.normalize(&text).as_bytes());
    }
}
