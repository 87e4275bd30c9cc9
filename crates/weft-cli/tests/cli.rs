//! The binary from a user's view: stdout, stderr and exit codes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use safetensors::tensor::TensorView;
use serde_json::Value;
use weft_core::config::Config;
use weft_core::weights::{RandomWeights, Weights, tensors};
use weft_testing::fake_hub::FakeHub;

/// A small model that answers nonsense, written once.
fn model() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            for (name, contents) in model_files() {
                std::fs::write(folder.path().join(name), contents).unwrap();
            }
            folder
        })
        .path()
}

fn model_files() -> Vec<(&'static str, Vec<u8>)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-core/tests/prompts");
    let read = |name: &str| std::fs::read(data.join(name)).unwrap();
    let config = br#"{"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 48, "vocab_size": 700, "max_position_embeddings": 512,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "dtype": "float32"}"#;
    vec![
        ("config.json", config.to_vec()),
        ("model.safetensors", weights(&Config::from_json(config).unwrap())),
        ("tokenizer.json", read("tokenizer.json")),
        ("chat_template.jinja", read("qwen3.jinja")),
    ]
}

fn weights(config: &Config) -> Vec<u8> {
    let random = RandomWeights::new(config, 3);
    let mut all = Vec::new();
    for shape in tensors(config) {
        let mut bytes = Vec::new();
        let mut take = |_, row: &[f32]| bytes.extend(row.iter().flat_map(|v| v.to_le_bytes()));
        random.read(shape.tensor, &mut take).unwrap();
        all.push((shape.tensor.name(), shape.shape, bytes));
    }
    let views = all.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// The binary, in its own environment.
fn weft(args: &[&str]) -> Command {
    static HOME: OnceLock<tempfile::TempDir> = OnceLock::new();
    let home = HOME.get_or_init(|| tempfile::tempdir().unwrap()).path();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command
        .args(args)
        .env_clear()
        .env("HOME", home)
        .env("HF_HUB_CACHE", home.join("hub"))
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null());
    command
}

/// `weft run` on the small model, greedy and short.
fn run(args: &[&str]) -> Command {
    let mut command = weft(&["run", "-m", model().to_str().unwrap(), "-n", "8", "--temp", "0"]);
    command.args(args);
    command
}

fn output(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn the_banner_is_one_short_line_and_details_come_with_v() {
    let banner = |args: &[&str]| output(run(args)).2.lines().next().unwrap().to_owned();
    let short = banner(&["hello"]);
    let name = model().file_name().unwrap().to_str().unwrap();
    assert!(short.starts_with(&format!("{name} · reference · ")), "{short}");
    assert!(short.ends_with(" s") && short.len() < 60, "{short}");
    let long = banner(&["-v", "hello"]);
    for part in ["reference (f32)", "KV", "context 512", "no CUDA device"] {
        assert!(long.contains(part), "-v does not show {part}: {long}");
    }
    let (_, _, before) = output({
        let mut command = weft(&["-v", "run", "-m", model().to_str().unwrap()]);
        command.args(["-n", "8", "hello"]);
        command
    });
    assert!(before.contains("no CUDA device"), "-v stands before the command too: {before}");
}

#[test]
fn the_answer_is_on_stdout_and_all_else_on_stderr() {
    let (code, stdout, stderr) = output(run(&["hello"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.ends_with('\n') && stdout.len() > 1);
    assert!(stderr.contains(" · reference · "), "a float32 model: {stderr}");
    assert!(stderr.contains("tok prompt · first token") && stderr.contains("· length"), "{stderr}");
    let (_, quiet, nothing) = output(run(&["--quiet", "hello"]));
    assert_eq!((quiet, nothing), (stdout, String::new()));
}

#[test]
fn the_first_word_may_be_the_model() {
    let named = output(run(&["-q", "hello there"])).1;
    let first = output(weft(&[
        "run",
        model().to_str().unwrap(),
        "hello there",
        "-q",
        "-n",
        "8",
        "--temp",
        "0",
    ]))
    .1;
    assert_eq!(named, first);
}

#[test]
fn a_first_word_that_is_no_model_is_refused_with_the_nearest_name() {
    let refused = |args: &[&str], near: &str| {
        let (code, stdout, stderr) = output(weft(args));
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(args[1]) && stderr.contains(near), "{args:?}: {stderr}");
    };
    let llama = "meta-llama/Llama-3.2-1B-Instruct";
    refused(&["run", "llama3.2", "Why is the sky blue?"], llama);
    refused(&["run", "nope", "hi there"], "Qwen/Qwen3-0.6B");
    refused(&["ask", "llama3.2", "Why is the sky blue?"], llama);
    let mut command = weft(&["run", "Cargo.toml", "sum up"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let (code, _, stderr) = output(command);
    assert!(code == 2 && stderr.contains("`-f Cargo.toml`"), "{stderr}");
    let (code, _, stderr) = output(weft(&["run", "-q", "-n", "2", "weft-tiny", "hi there"]));
    assert_eq!(code, 0, "the bundled model has a name: {stderr}");
    let (code, _, stderr) = output(weft(&["run", "-q", "-n", "2", "llama3.2"]));
    assert_eq!(code, 0, "one word is the prompt: {stderr}");
}

#[test]
fn the_bundled_model_says_what_it_is() {
    let says = "the bundled demo model answers only about documents; `-m Qwen/Qwen3-0.6B` gets a \
                real one";
    let stderr = |args: &[&str]| {
        let (code, _, stderr) = output(weft(args));
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stderr
    };
    let count = |args: &[&str]| stderr(args).lines().filter(|line| *line == says).count();
    assert_eq!(count(&["run", "-n", "2", "hello"]), 1);
    assert_eq!(count(&["chat"]), 1);
    assert_eq!(count(&["run", "-n", "2", "--json", "hello"]), 0);
    assert_eq!(count(&["run", "-n", "2", "-q", "hello"]), 0);
    assert_eq!(count(&["run", "-n", "2", "-m", model().to_str().unwrap(), "hello"]), 0);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/nusonix.txt");
    assert_eq!(count(&["ask", "-n", "2", file.to_str().unwrap(), "Who rules Nusonix?"]), 1);
    let warned = stderr(&["ask", "-n", "2", "Who rules Nusonix?"]);
    assert!(warned.contains("warning: no document") && warned.contains("--context"), "{warned}");
    assert_eq!(stderr(&["ask", "-n", "2", "-q", "Who rules Nusonix?"]), "");
}

#[test]
fn json_has_the_answer_and_its_figures() {
    let text = output(run(&["-q", "hello"])).1;
    let json: Value = serde_json::from_str(&output(run(&["--json", "hello"])).1).unwrap();
    assert_eq!(json["text"].as_str().unwrap(), text.trim_end_matches('\n'));
    assert_eq!(
        (json["generated_tokens"].as_u64(), json["finish_reason"].as_str()),
        (Some(8), Some("length"))
    );
    assert!(json["first_token_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_seed_repeats_the_answer() {
    let draw = |seed| output(run(&["--temp", "1.5", "-s", seed, "-n", "30", "-q", "hello"])).1;
    assert_eq!(draw("7"), draw("7"));
    assert_ne!(draw("7"), draw("8"));
}

#[test]
fn the_bundled_model_answers_about_files() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/nusonix.txt");
    let file = document.to_str().unwrap();
    let question = "In which year was Nusonix founded?";
    let ask = |args: &[&str]| output(weft(&[&["ask", "--context", file], args].concat()));
    let (code, answer, stderr) = ask(&["--", question]);
    assert_eq!((code, answer.as_str()), (0, "1376\n"), "{stderr}");
    let sentence = ask(&["--system", "Answer in a full sentence.", question]).1;
    assert_eq!(sentence, "Nusonix was founded in 1376.\n");
    let on_reference = ask(&["--kernels", "reference", question]).1;
    assert_eq!(on_reference, answer);
    // As a shell expands `--context assets/demo/*.txt`.
    let other = document.with_file_name("krogaste.txt");
    let many = ask(&[other.to_str().unwrap(), "Who gives the orders on board the Krogaste?"]).1;
    assert_eq!(many, "Probrosur\n");
}

#[test]
fn weights_are_quantised_while_loading() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/nusonix.txt");
    let args = ["ask", "--context", document.to_str().unwrap(), "--quantize"];
    for form in ["int8", "int4"] {
        let question = [form, "In which year was Nusonix founded?"];
        let (code, answer, stderr) = output(weft(&[&args[..], &question].concat()));
        assert_eq!((code, answer.as_str()), (0, "1376\n"), "{stderr}");
        assert!(stderr.contains(&format!("weft-tiny {form} · ")), "{stderr}");
    }
    let weights = |more: &[&str]| {
        let stdout = output(weft(&[&["show", "--json"], more].concat())).1;
        serde_json::from_str::<Value>(&stdout).unwrap()["weight_bytes"].as_u64().unwrap()
    };
    assert!(weights(&["--quantize", "int4"]) * 10 < weights(&[]) * 4);
}

#[test]
fn pipes_and_files_stand_before_the_prompt() {
    let mut child = run(&["--json", "sum this up"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a text from elsewhere").unwrap();
    let piped = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let inline = output(run(&["--json", "a text from elsewhere\n\nsum this up"])).1;
    let field = |json: &str, name: &str| serde_json::from_str::<Value>(json).unwrap()[name].clone();
    assert_eq!(field(&piped, "text"), field(&inline, "text"));
    assert_eq!(field(&piped, "prompt_tokens"), field(&inline, "prompt_tokens"));
}

#[test]
fn thinking_is_switched_by_flags() {
    let tokens = |flag: &str| {
        let json: Value = serde_json::from_str(&output(run(&["--json", flag, "hello"])).1).unwrap();
        json["prompt_tokens"].as_u64().unwrap()
    };
    assert!(
        tokens("--no-think") > tokens("--think"),
        "no thinking is an empty thought in the prompt"
    );
}

#[test]
fn exit_codes_show_what_went_wrong() {
    let refused = |args: &[&str], code: i32, says: &[&str]| {
        let (found, stdout, stderr) = output(weft(args));
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        for part in says {
            assert!(stderr.contains(part), "{args:?}: `{stderr}` does not say `{part}`");
        }
    };
    let model = model().to_str().unwrap();
    refused(&["run", "--nonsense"], 2, &["--nonsense"]);
    refused(&["run", "-m", model], 2, &["prompt is empty"]);
    refused(&["run", "-m", model, "--ctx-size", "4k", "hi"], 2, &["4096", "512"]);
    refused(&["run", "-m", model, "--ctx-size", "x", "hi"], 2, &["32k"]);
    refused(&["ask"], 2, &["QUESTION"]);
    refused(&["ask", "--context", "/no/such/file", "--", "hi"], 2, &["/no/such/file"]);
    refused(&["run", "-m", "org/absent", "hi"], 3, &["org/absent", "weft pull"]);
    refused(&["run", "-m", "/no/such/folder", "hi"], 3, &["/no/such/folder"]);
    refused(&["pull", "org/absent"], 1, &["HF_HUB_OFFLINE"]);
    refused(&["run", "-m", model, "-t", "999", "hi"], 2, &["999 threads are too many"]);
    let folder = env!("CARGO_MANIFEST_DIR");
    refused(&["show", folder], 2, &["not a model folder", "config.json"]);
    refused(&["pull", "nonsense"], 2, &["nonsense", "org/name"]);
    refused(&["run", "-m", model, "--device", "cuda", "hi"], 5, &["CUDA"]);
    refused(&["run", "-m", model, "--kernels", "graph", "hi"], 5, &["--kernels"]);
    refused(&["run", "-m", model, "--top-p", "7", "hi"], 2, &["top_p", "7"]);
    refused(&["run", "-m", model, "--threads", "100000", "hi"], 2, &["100000", "core"]);
}

#[test]
fn serve_refuses_a_wrong_name_before_it_listens() {
    let empty = tempfile::tempdir().unwrap();
    for name in [empty.path().to_str().unwrap(), "/no/such/folder", "Qwen/Qwen3-0.6B"] {
        let (code, _, stderr) = output(weft(&["serve", "--port", "0", "--offline", name]));
        assert!(code != 0 && stderr.contains("error"), "{name}: {stderr}");
        assert!(!stderr.contains("http://"), "{name}: {stderr}");
    }
}

#[test]
fn hostile_text_in_errors_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "\u001b[31mred\u0007"}"#)
        .unwrap();
    let (code, _, stderr) = output(weft(&["show", folder.path().to_str().unwrap()]));
    assert_eq!(code, 1);
    assert!(stderr.contains("[31mred") && !stderr.contains(['\u{1b}', '\u{7}']), "{stderr:?}");
}

#[test]
fn a_model_named_first_wins_over_the_environment() {
    let ask = |args: &[&str]| {
        let mut command = weft(&[&["run", "-q", "-n", "4", "--temp", "0"], args].concat());
        command.env("WEFT_MODEL", "/no/such/model");
        output(command)
    };
    let model = model().to_str().unwrap();
    assert_eq!(ask(&[model, "hello"]).0, 0);
    assert_eq!(ask(&["hello there"]).0, 3, "the environment's model, which does not exist");
    assert_eq!(ask(&["hello", "there"]).0, 2, "the first of several words must be a model");
    let words =
        output(weft(&["run", "-m", model, "-q", "-n", "4", "--temp", "0", "hello", "there"]));
    assert_eq!(words.1, ask(&[model, "hello there"]).1, "words make one prompt");
}

#[test]
fn switches_in_the_environment_take_what_people_write() {
    let stderr = |value: &str| {
        let mut command = run(&["hello"]);
        command.env("WEFT_QUIET", value).env("WEFT_CTX_SIZE", "");
        let (code, _, stderr) = output(command);
        assert_eq!(code, 0, "WEFT_QUIET={value}: {stderr}");
        stderr
    };
    assert!(["1", "true", "yes", "on"].iter().all(|value| stderr(value).is_empty()));
    assert!(["0", "false", "no", ""].iter().all(|value| !stderr(value).is_empty()));
    let mut command = weft(&["list"]);
    command.env("WEFT_CONFIG", "/no/such/file.toml");
    let (code, _, stderr) = output(command);
    assert_eq!(code, 2);
    assert!(stderr.contains("/no/such/file.toml"), "{stderr}");
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let long = "word ".repeat(600);
    let (code, stdout, stderr) = output(run(&[&long]));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("has 1214 tokens") && stderr.contains("holds 512"), "{stderr}");
    assert!(stderr.contains("shorten the prompt, because the model has no more"), "{stderr}");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, format!("model = {:?}\nmax-tokens = 3\ntemperature = 0.0\n", model()))
        .unwrap();
    let tokens = |args: &[&str], env: Option<&str>| {
        let mut command = weft(&["run", "--json", "hello"]);
        command.args(args).env("WEFT_CONFIG", &file);
        env.map(|value| command.env("WEFT_MAX_TOKENS", value));
        let json: Value = serde_json::from_str(&output(command).1).unwrap();
        json["generated_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(&[], None), 3);
    assert_eq!(tokens(&[], Some("4")), 4);
    assert_eq!(tokens(&["-n", "5"], Some("4")), 5);
}

#[test]
fn chat_answers_line_by_line_and_obeys_commands() {
    let mut child = weft(&["chat", model().to_str().unwrap(), "-n", "4", "--temp", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = b"hello\n/stats\n/system Be brief.\n/nonsense\nhello\n/quit\nnever read\n";
    child.stdin.take().unwrap().write_all(lines).unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{stderr}");
    assert_eq!(stderr.matches("tok prompt ·").count(), 3, "two answers and /stats: {stderr}");
    assert!(stderr.contains("/nonsense is not a command"), "{stderr}");
}

#[test]
fn show_prints_the_true_shape() {
    let (code, stdout, _) = output(weft(&["show", "--json", model().to_str().unwrap()]));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let attention = 32 * 64 * 2 + 32 * 32 * 2 + 2 * 16;
    let layer = attention + 3 * 32 * 48 + 2 * 32;
    assert_eq!(code, 0);
    assert_eq!(json["parameters"].as_u64(), Some(700 * 32 + 2 * layer + 32));
    assert_eq!(json["kv_bytes_per_token"].as_u64(), Some(2 * 2 * 32 * 4));
    assert_eq!((json["heads"].as_u64(), json["kv_heads"].as_u64()), (Some(4), Some(2)));
    // Two contexts of 512 tokens, and 32 pages of 64 rows more.
    assert_eq!(json["kv_page_bytes"].as_u64(), Some((2 * 512 + 32 * 64) * 2 * 2 * 32 * 4));
    assert!(json["memory_bytes"].as_u64() > json["kv_page_bytes"].as_u64());
    let text = output(weft(&["show", model().to_str().unwrap()])).1;
    assert!(text.contains("4 query, 2 key/value, of 16") && text.contains("memory"), "{text}");
    assert_eq!(json["kv_bytes_per_1k_tokens"].as_u64(), Some(1024 * 2 * 2 * 32 * 4));
    assert_eq!(json["kv_bytes_of_context"].as_u64(), Some(512 * 2 * 2 * 32 * 4));
    assert!(text.contains("524 kB per 1k tokens, 262 kB for 512, on the device"), "{text}");
    assert!(text.contains("reserved for a context of 512"), "{text}");
    // A token reads all but the embedding, which is the head, and one of its rows.
    assert_eq!(json["active_parameters"], json["parameters"]);
    let read = 4 * (700 * 32 + 2 * layer + 32 + 32);
    assert_eq!(json["weight_bytes_per_token"].as_u64(), Some(read));
}

#[test]
fn doctor_finds_this_machine_fit() {
    let (code, stdout, stderr) = output(weft(&["doctor"]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("self-test") && !stdout.contains("FAIL"), "{stdout}");
    assert!(stdout.contains("117 MB per 1k tokens, 940 MB for 8192"), "{stdout}");
}

#[test]
fn the_environment_chooses_the_instructions_of_the_cpu() {
    let weft_by = |isa: &str, args: &[&str]| {
        let mut command = weft(args);
        command.env("WEFT_CPU_ISA", isa);
        output(command)
    };
    let (code, stdout, _) = weft_by("portable", &["doctor"]);
    assert!(code == 0 && stdout.contains("CPU (portable,"), "{code} {stdout}");
    for args in [&[][..], &["bench", "--device", "cpu"], &["doctor"]] {
        let (code, stdout, stderr) = weft_by("mmx", args);
        let said = stdout + &stderr;
        assert!(code != 0 && said.contains("\"mmx\"") && said.contains("avx2"), "{code} {said}");
        assert!(!said.contains("rebuild"), "{said}");
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(output(weft(&["completions", shell])).1.contains("doctor"), "{shell}");
    }
}

#[test]
fn a_model_is_pulled_listed_and_run_by_its_name() {
    let hub = FakeHub::start();
    let files = model_files();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, c)| (*n, c.as_slice())).collect();
    let sha = "0123456789abcdef0123456789abcdef01234567";
    hub.add_commit("org/tiny", sha, &files);
    hub.set_ref("org/tiny", "main", sha);
    let cache = tempfile::tempdir().unwrap();
    let at_hub = |args: &[&str]| {
        let mut command = weft(args);
        command
            .env("HF_HUB_CACHE", cache.path())
            .env("HF_ENDPOINT", hub.endpoint())
            .env_remove("HF_HUB_OFFLINE");
        output(command)
    };
    let (code, stdout, stderr) = at_hub(&["pull", "org/tiny"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(PathBuf::from(stdout.trim()).join("config.json").exists(), "{stdout}");
    let (_, listed, _) = at_hub(&["list"]);
    assert!(listed.contains("org/tiny") && listed.contains("ready"), "{listed}");
    let requests = hub.requests().len();
    let (code, answer, stderr) =
        at_hub(&["run", "org/tiny", "hello", "-n", "8", "--temp", "0", "-q"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(answer, output(run(&["-q", "hello"])).1);
    let short = at_hub(&["run", "Tiny", "hello", "-n", "8", "--temp", "0", "-q"]);
    assert_eq!(short, (0, answer, String::new()), "a cached name without its organisation");
    assert_eq!(hub.requests().len(), requests, "a model in the cache needs no network");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_answer_of_seconds() {
    // So slow that the answer does not end by itself.
    let mut child = weft(&["ask", "--kernels", "reference", "--ignore-eos", "hello"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(String::from_utf8(stderr).unwrap().contains("· cancelled"));
}
