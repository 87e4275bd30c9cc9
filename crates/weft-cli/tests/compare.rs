//! `weft compare` on the bundled model: its figures, llama.cpp's file, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs `weft compare` without any settings. Returns the exit code, stdout and stderr.
fn compare(args: &[&str]) -> (i32, String, String) {
    compare_with(args, &[])
}

fn compare_with(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .arg("compare")
        .args(args)
        .env_clear()
        .env("HF_HUB_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .env("HF_HUB_OFFLINE", "1")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(args: &[&str]) -> Value {
    let (code, stdout, stderr) = compare(&[args, &["--output", "json", "-q"]].concat());
    assert_eq!((code, stderr.as_str()), (0, ""));
    serde_json::from_str(&stdout).unwrap()
}

fn number(value: &Value, name: &str) -> f64 {
    value["result"][name].as_f64().unwrap()
}

/// A folder with the first held-out documents of the bundled model in `text.txt`.
fn folder_with_text(n_documents: usize) -> (tempfile::TempDir, PathBuf) {
    let lines = std::fs::read_to_string(root().join("assets/weft-tiny/heldout.jsonl")).unwrap();
    let documents = lines.lines().take(n_documents).map(|line| {
        let value: Value = serde_json::from_str(line).unwrap();
        value["text"].as_str().unwrap().to_owned() + "\n\n"
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, documents.collect::<String>()).unwrap();
    (folder, file)
}

#[test]
fn quantised_forms_stay_near_the_model() {
    let (_folder, file) = folder_with_text(20);
    let of = |form: &str| {
        let words = ["weft-tiny", "weft-tiny", "--text", path(&file), "--quantize-b", form];
        json(if form.is_empty() { &words[..4] } else { &words })
    };
    let same = of("");
    let result = &same["result"];
    for name in ["kl_mean", "kl_error", "kl_median", "kl_p99", "kl_max"] {
        assert_eq!(result[name], 0.0, "{name}");
    }
    assert_eq!(
        (&result["same_top"], &result["perplexity_a"]),
        (&1.0.into(), &result["perplexity_b"])
    );
    assert_eq!(
        (&same["window_tokens"], &same["model"]["b"]["name"]),
        (&512.into(), &"weft-tiny".into())
    );
    assert_eq!(result["tokens"], 255 * same["windows"].as_u64().unwrap());
    let (int8, int4) = (of("int8"), of("int4"));
    assert_eq!(int4["model"]["b"]["quantize"], "int4");
    assert_eq!(number(&int8, "perplexity_a"), number(&same, "perplexity_a"));
    let [fine, coarse] = [&int8, &int4].map(|form| number(form, "kl_mean"));
    assert!(0.0 < fine && fine < 1e-3 && 4.0 * fine < coarse && coarse < 5e-2, "{fine} {coarse}");
    for form in [&int8, &int4] {
        let median = number(form, "kl_median");
        assert!(median < number(form, "kl_p99") && number(form, "kl_p99") < number(form, "kl_max"));
    }
    assert!(number(&int8, "same_top") > number(&int4, "same_top"));
}

#[test]
fn a_file_of_distributions_stands_for_the_model() {
    let (folder, file) = folder_with_text(8);
    let base = folder.path().join("base");
    let (text, saved) =
        (["--text", path(&file), "--ctx-size", "128"], ["--save-base", path(&base)]);
    let (code, stdout, stderr) = compare(&[&["weft-tiny"][..], &text, &saved].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("perplexity") && !stdout.contains("KL"), "{stdout}");
    assert!(stderr.contains("wrote ") && stderr.contains("base"), "{stderr}");
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "{names:?}");

    let form = ["weft-tiny", "--quantize-b", "int4"];
    let of_file = json(&[&["--base", path(&base)][..], &form].concat());
    let direct = json(&[&["weft-tiny"][..], &form, &text].concat());
    assert_eq!((&of_file["window_tokens"], &of_file["windows"]), (&128.into(), &direct["windows"]));
    assert_eq!(number(&of_file, "perplexity_b"), number(&direct, "perplexity_b"));
    // The file rounds log-probabilities to 16 bits, and leaves out rare tokens.
    for name in ["kl_mean", "kl_p99", "perplexity_a"] {
        let (ours, exact) = (number(&of_file, name), number(&direct, name));
        assert!((ours / exact - 1.0).abs() < 0.02, "{name}: {ours}, {exact}");
    }
    let fewer = json(&[&["--base", path(&base), "--windows", "2"][..], &form].concat());
    assert_eq!((&fewer["windows"], &fewer["result"]["tokens"]), (&2.into(), &126.into()));
}

#[test]
fn a_file_that_cut_tokens_of_the_text_gives_no_perplexity_of_a() {
    let folder = tempfile::tempdir().unwrap();
    let [file, base] = ["text.txt", "base"].map(|name| folder.path().join(name));
    std::fs::write(&file, "Zq, 77 xylophone; the of of! Nusonix %% ruler blue \u{e4}\n".repeat(9))
        .unwrap();
    let text = ["--text", path(&file), "-c", "64"];
    let (code, _, stderr) =
        compare(&[&["weft-tiny"][..], &text, &["--save-base", path(&base)]].concat());
    assert_eq!(code, 0, "{stderr}");
    let of_file = ["--base", path(&base), "weft-tiny"];
    let result = &json(&of_file)["result"];
    let (n_cut, tokens) = (result["n_cut_a"].as_u64().unwrap(), result["tokens"].as_u64().unwrap());
    assert!(n_cut > 0 && n_cut < tokens, "{result}");
    assert!(result["perplexity_a"].is_null(), "{result}");
    let (least, b) = (result["perplexity_a_least"].as_f64(), result["perplexity_b"].as_f64());
    assert!(least < b, "{result}");
    let (_, table, _) = compare(&of_file);
    let says = format!("({n_cut} of {tokens} tokens are below e^-16, which the file cannot hold)");
    assert!(table.contains("; A at least ") && table.contains(&says), "{table}");
    assert!(!table.lines().last().unwrap().contains("(+"), "{table}");
    let (_, csv, _) = compare(&[&of_file[..], &["-o", "csv"]].concat());
    assert!(csv.contains("perplexity_a_least") && csv.contains(",null,"), "{csv}");
    // The model itself gives both.
    let direct = json(&[&["weft-tiny", "weft-tiny"][..], &text].concat());
    assert_eq!(direct["result"]["n_cut_a"], 0);
    assert_eq!(direct["result"]["perplexity_a"], direct["result"]["perplexity_b"]);
}

/// The file was written by `llama-perplexity -m BF16.gguf -f text.txt --kl-divergence-base
/// llama.base -c 24 -b 24 --chunks 2`, with the bundled model as `tools/quality.py` writes it and
/// its first held-out documents.
#[test]
fn the_file_that_llama_cpp_writes_is_read() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/llama.base");
    let result = json(&["--base", path(&base), "weft-tiny"]);
    assert_eq!((&result["window_tokens"], &result["result"]["tokens"]), (&24.into(), &22.into()));
    // What llama-perplexity prints.
    assert!((number(&result, "perplexity_a") - LLAMA_PERPLEXITY).abs() < 1e-3);
    assert!((number(&result, "perplexity_b") / LLAMA_PERPLEXITY - 1.0).abs() < 0.01);
    // Two ways to compute one model, and 16 bits.
    assert!(number(&result, "kl_mean").abs() < 1e-3);
    assert!(number(&result, "same_top") > 0.9);
    let (_folder, file) = folder_with_text(8);
    let direct =
        json(&["weft-tiny", "weft-tiny", "--text", path(&file), "-c", "24", "--chunks", "2"]);
    let ours = number(&direct, "perplexity_b");
    assert_eq!(ours, number(&result, "perplexity_b"), "other tokens than llama.cpp's");
}

const LLAMA_PERPLEXITY: f64 = 1.6390;

#[test]
fn what_cannot_be_compared_is_refused_with_the_reason() {
    let (folder, file) = folder_with_text(1);
    let in_folder = |name: &str| folder.path().join(name);
    let text = ["--text", path(&file)];
    let refused = |args: &[&str], code: i32, reason: &str| {
        let (found, stdout, stderr) = compare(args);
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(reason), "{args:?}: {stderr}");
    };
    let tiny = "weft-tiny";
    refused(&[], 2, "A B");
    refused(&[tiny, tiny], 2, "--text FILE");
    refused(&[tiny, text[0], text[1]], 2, "--save-base FILE");
    refused(&[tiny, tiny, text[0], text[1]], 2, "tokens and a window 512; give a longer text");
    refused(&[tiny, tiny, text[0], text[1], "-c", "3"], 2, "give 4 or more");
    refused(&[tiny, tiny, text[0], text[1], "-c", "8192"], 2, "exceeds the model's 4096 positions");
    refused(&[tiny, "no/model", text[0], text[1]], 3, "no/model");
    refused(&[tiny, tiny, "--text", "no.txt"], 2, "no.txt");
    refused(&["--base", path(&file), tiny], 1, "not a file of log-probabilities");
    refused(&["--base", path(&file), tiny, text[0], text[1]], 2, "--text");
    refused(&["--base", path(&file), tiny, tiny], 2, "--base FILE B");
    let saved = ["--save-base", path(folder.path())];
    refused(&[tiny, text[0], text[1], "-c", "16", saved[0], saved[1]], 1, path(folder.path()));

    // One chunk of 4 tokens, a vocabulary of 3.
    let mut bytes = b"_logits_\x04\0\0\0\x03\0\0\0\x01\0\0\0".to_vec();
    bytes.resize(20 + 16 + 16, 0);
    std::fs::write(in_folder("small"), bytes).unwrap();
    refused(&["--base", path(&in_folder("small")), tiny], 2, "a vocabulary of 3 tokens");

    let other = in_folder("other");
    std::fs::create_dir(&other).unwrap();
    for file in std::fs::read_dir(root().join("assets/weft-tiny")).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, other.join(file.file_name().unwrap())).unwrap();
    }
    let words = std::fs::read_to_string(other.join("tokenizer.json")).unwrap();
    std::fs::write(other.join("tokenizer.json"), words.replace("<|im_end|>", "<|im_fin|>"))
        .unwrap();
    let reason = "\"<|im_end|>\" in A and \"<|im_fin|>\" in B; take two forms of one model";
    refused(&[tiny, path(&other), text[0], text[1], "-c", "16"], 2, reason);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "text, small, other");
}

#[test]
fn the_context_of_other_commands_does_not_change_the_windows() {
    let (_folder, file) = folder_with_text(8);
    let args = ["weft-tiny", "weft-tiny", "--text", path(&file), "-o", "csv"];
    let (code, stdout, stderr) = compare_with(&args, &[("WEFT_CTX_SIZE", "64")]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("weft-tiny · "), "{stderr}");
    let line = stdout.lines().nth(1).unwrap();
    assert_eq!(line.split(',').nth(2), Some("255"), "{stdout}");
}
