//! `weft bench` from a user's view: rows, hashes, files, and refusals.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const SHAPE: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "vocab_size": 256, "max_position_embeddings": 512, "rope_theta": 1e6,
    "tie_word_embeddings": true}"#;

/// A folder with a small shape in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::write(folder.file("small.json"), SHAPE).unwrap();
        folder
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `weft bench …` in the folder: exit code, stdout, stderr.
    fn bench(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command
            .arg("bench")
            .args(args)
            .current_dir(self.0.path())
            .env_clear()
            .env("HOME", Path::new("/nonexistent"))
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    /// A short run of the small shape, as JSON.
    fn run(&self, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.bench(&[&SMALL[..], &["-o", "json"], args].concat());
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
}

/// Flags of a very short run.
const SMALL: [&str; 15] = [
    "--shape",
    "small.json",
    "--bandwidth-mib",
    "8",
    "-p",
    "20",
    "-n",
    "4",
    "-d",
    "0,70",
    "-b",
    "1,2",
    "-r",
    "2",
    "-q",
];

/// Name, batch and hash of each row.
fn hashes(run: &Value) -> Vec<(String, u64, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |row: &Value| {
        (text(&row["test"]), row["batch"].as_u64().unwrap(), text(&row["logits"]["hash"]))
    };
    run["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn the_hash_depends_on_weights_and_tokens_alone() {
    let folder = Folder::new();
    let first = hashes(&folder.run(&[]));
    let tests: Vec<(&str, u64)> = first.iter().map(|(t, batch, _)| (t.as_str(), *batch)).collect();
    let expected = [
        ("pp20", 1),
        ("tg4", 1),
        ("tg4", 2),
        ("pp20 @ d70", 1),
        ("tg4 @ d70", 1),
        ("tg4 @ d70", 2),
    ];
    assert_eq!(tests, expected);
    assert_eq!(hashes(&folder.run(&[])), first, "two runs");
    assert_eq!(hashes(&folder.run(&["-t", "1"])), first, "another number of threads");
    assert_eq!(hashes(&folder.run(&["--step-tokens", "9"])), first, "prompts cut otherwise");
    let alone = ["--shape", "small.json", "--bandwidth-mib", "8", "-p", "0", "-n", "4", "-d", "70"];
    let (_, alone, _) = folder.bench(&[&alone[..], &["-b", "1", "-r", "1", "-o", "json"]].concat());
    let alone = hashes(&serde_json::from_str(&alone).unwrap());
    assert_eq!(alone, [first[4].clone()], "without the other tests");
    for (other, first) in hashes(&folder.run(&["--seed", "2"])).iter().zip(&first) {
        assert_ne!(other.2, first.2, "other weights: {}", first.0);
    }
}

#[test]
fn json_has_what_it_takes_to_judge_a_figure() {
    let run = Folder::new().run(&[]);
    assert_eq!(run["format"], 1);
    assert!(run["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0));
    assert_eq!(run["command"][1], "bench");
    assert_eq!(run["problems"], Value::Array(Vec::new()));
    let bandwidth = &run["bandwidth"];
    for when in ["before", "after"] {
        assert!(bandwidth[when].as_array().unwrap().len() >= 5, "{bandwidth}");
    }
    let samples = |row: usize| run["rows"][row]["samples_us"].as_array().unwrap().len();
    assert_eq!((samples(0), samples(1)), (2, 2 * 4), "a prompt is one sample, a token too");
    let decode = &run["rows"][2];
    // Two lanes read the weights once; each reads 1 to 4 rows of KV and stores one, and reads a row
    // of the embedding.
    let (kv_row, embedding_row) = (2 * 2 * 64 * 2, 64 * 2);
    let weights = run["model"]["weight_bytes"].as_u64().unwrap();
    let rows = 2 * (2 * kv_row + kv_row / 2 + kv_row);
    assert_eq!(decode["bytes"].as_u64(), Some(weights + rows + 2 * embedding_row));
    let speed = 2e6 / decode["time_us"]["median"].as_f64().unwrap();
    assert!((decode["tokens_per_s"]["median"].as_f64().unwrap() / speed - 1.0).abs() < 1e-9);
    assert!(decode["bandwidth_share"].as_f64().unwrap() > 0.0);
    assert!(run["rows"][0]["bandwidth_share"].is_null(), "arithmetic bounds prefill");
}

#[test]
fn the_reference_device_can_be_measured() {
    let run = Folder::new().run(&["--kernels", "reference"]);
    assert!(run["device"].as_str().unwrap().contains("reference"), "{}", run["device"]);
    assert_eq!(run["threads"], 1);
}

#[test]
fn a_run_without_repetitions_is_short_and_says_how_to_do_more() {
    let args = ["--shape", "small.json", "--bandwidth-mib", "8", "-p", "20", "-n", "4"];
    let folder = Folder::new();
    let (code, table, stderr) = folder.bench(&args);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("a short run; `weft bench -r 5"), "{stderr}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    let (_, _, stderr) = folder.bench(&[&args[..], &["-r", "1"]].concat());
    assert!(!stderr.contains("a short run"), "{stderr}");
}

#[test]
fn table_and_csv_have_a_line_for_each_test() {
    let folder = Folder::new();
    let (code, table, stderr) = folder.bench(&SMALL);
    assert_eq!((code, stderr.as_str()), (0, ""), "quiet is quiet");
    assert!(table.starts_with("small bf16 · "), "{table}");
    assert_eq!(
        table
            .lines()
            .filter(|line| line.starts_with("| pp20") || line.starts_with("| tg4"))
            .count(),
        6,
        "{table}"
    );
    assert!(table.contains("read bandwidth: "), "{table}");
    let (_, csv, _) = folder.bench(&[&SMALL[..], &["-o", "csv"]].concat());
    assert_eq!(csv.lines().count(), 7, "{csv}");
}

#[test]
fn ops_add_up_to_the_step() {
    let folder = Folder::new();
    let args =
        ["ops", "--shape", "small.json", "--bandwidth-mib", "8", "-b", "2", "-d", "70", "-q"];
    let (code, table, stderr) = folder.bench(&args);
    assert_eq!(code, 0, "{stderr}");
    for op in ["embed", "norm_qkv", "rope_store", "attend", "proj_add", "norm_gate_up", "down_add"]
    {
        assert!(table.contains(&format!("| {op} @ d70 ")), "{op}: {table}");
    }
    let (_, json, _) = folder.bench(&[&args[..], &["-o", "json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let bytes = |row: &Value| row["bytes"].as_u64().unwrap();
    let (ops, last) = rows.split_at(8);
    assert_eq!(last.len(), 2, "the sum, and the whole step");
    assert_eq!(ops.iter().map(bytes).sum::<u64>(), bytes(&last[0]));
    assert_eq!(bytes(&last[0]), bytes(&last[1]));
}

#[test]
fn a_timeline_has_every_op_of_a_token_in_order() {
    let folder = Folder::new();
    let (code, _, stderr) = folder.bench(&[&SMALL[..], &["--timeline", "token.json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let trace = std::fs::read_to_string(folder.file("token.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ops: Vec<&Value> =
        events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 2).collect();
    // Two layers of six ops, the embedding before and the head after them.
    assert_eq!(ops.len(), 14, "{trace:#}");
    assert_eq!((&ops[0]["name"], &ops[13]["name"]), (&"embed".into(), &"norm_head".into()));
    assert_eq!(ops[9]["args"]["layer"], 1);
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    for pair in ops.windows(2) {
        let end = number(pair[0], "ts") + number(pair[0], "dur");
        assert!((number(pair[1], "ts") - end).abs() < 1e-6, "one after the other");
        assert!(number(pair[0], "dur") > 0.0);
    }
}

#[test]
fn tokens_that_follow_one_another_are_timed_too() {
    let run = Folder::new().run(&["--follow"]);
    let names: Vec<&str> =
        run["rows"].as_array().unwrap().iter().filter_map(|row| row["test"].as_str()).collect();
    let followed = names.iter().filter(|name| name.starts_with("gen")).count();
    let given = names.iter().filter(|name| name.starts_with("tg")).count();
    assert!(followed > 0 && followed == given, "{names:?}");
}

/// Ways of choosing tokens: best, two samplers, log-probabilities of one and of six tokens, and a
/// schema without and with them.
const WAYS: usize = 7;

#[test]
fn whole_answers_are_timed_by_every_way_of_choosing() {
    let folder = Folder::new();
    let config = SHAPE.replace("\"vocab_size\": 256", "\"vocab_size\": 2048");
    std::fs::write(folder.file("talks.json"), config).unwrap();
    let args = ["generate", "-n", "5", "-d", "3,70", "-b", "1,2", "-r", "2", "-q", "-o", "json"];
    let (code, json, stderr) = folder.bench(&[&args[..], &["--shape", "talks.json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&json).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), WAYS * 2 * 2);
    assert!(rows.iter().all(|row| row["same_tokens"] == true && row["samples"][1].is_number()));
    let (code, _, stderr) = folder.bench(&[&args[..], &["--shape", "small.json"]].concat());
    assert_eq!(code, 2);
    assert!(stderr.contains("small has 256 tokens"), "{stderr}");
}

#[test]
fn drafted_answers_are_timed_beside_plain_ones_and_drawn() {
    let folder = Folder::new();
    let config = SHAPE.replace("\"vocab_size\": 256", "\"vocab_size\": 2048");
    std::fs::write(folder.file("talks.json"), config).unwrap();
    let args = ["speculate", "--shape", "talks.json", "-n", "99", "--n-wrong", "30", "-d", "3,70"];
    let more =
        ["--right", "0,75,100", "--lengths", "4,auto", "-r", "2", "-q", "--save", "run.json"];
    let draft = ["--draft", "talks.json"];
    let (code, table, stderr) = folder.bench(&[&args[..], &more, &draft].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(table.contains("| oracle, 99 tokens | 70 | 4 | 100 % | 100 % |"), "{table}");
    let run = std::fs::read_to_string(folder.file("run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    let rows = run["rows"].as_array().unwrap();
    let n_rows = (1 + 2 * 3) + (1 + 1) + (1 + 2);
    assert_eq!(rows.len(), 2 * n_rows, "plain ones, oracles, always wrong, draft model");
    assert_eq!(run["draft_model"], "talks.json");
    for row in rows {
        assert_eq!(row["same_tokens"], true, "{row}");
        let samples = |name: &str| row[name].as_array().unwrap().len();
        assert_eq!((samples("samples"), samples("samples_times_plain")), (2, 2), "{row}");
        let times = &row["times_plain"];
        let at = |name: &str| times[name].as_f64().unwrap();
        assert!(at("p10") <= at("median") && at("median") <= at("p90"), "{row}");
        if row["draft"] == "off" {
            assert_eq!((&row["drafted"], &times["median"]), (&0.into(), &1.0.into()), "{row}");
        }
        let share = || row["accepted_share"].as_f64().unwrap();
        match (row["draft"].as_str(), row["right_percent"].as_u64()) {
            (Some("4"), Some(100)) => assert_eq!(share(), 1.0, "{row}"),
            // The first wrong token ends a draft: 0.75 + 0.75² + 0.75³ + 0.75⁴ of four.
            (Some("4"), Some(75)) => assert!((share() - 0.51).abs() < 0.2, "{row}"),
            (Some("4"), Some(0)) => assert_eq!(row["accepted"], 0, "{row}"),
            (Some("4"), None) => {
                assert_eq!(row["text"], "draft model", "{row}");
                assert!(row["drafted"].as_u64().unwrap() > 0 && share() < 0.5, "{row}");
            }
            _ => {}
        }
    }
    let (code, _, stderr) = folder.bench(&["plot", "run.json", "--out", "run.svg"]);
    assert_eq!(code, 0, "{stderr}");
    let svg = std::fs::read_to_string(folder.file("run.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 2 * 2 * 2, "depths, panels, lengths");
    for (wrong, says) in [
        (["--lengths", "off"], "plain decoding"),
        (["--lengths", "9"], "1 to 7"),
        (["--right", "101"], "101"),
        (["-n", "1"], "one token"),
    ] {
        let (code, _, stderr) = folder.bench(&[&["speculate"][..], &wrong].concat());
        assert!(code == 2 && stderr.contains(says), "{wrong:?}: {stderr}");
    }
}

#[test]
fn answers_behind_chunks_have_the_tokens_of_one_piece() {
    let folder = Folder::new();
    let config = SHAPE.replace("\"vocab_size\": 256", "\"vocab_size\": 2048");
    std::fs::write(folder.file("talks.json"), config).unwrap();
    let ask = |depth, chunks| {
        let args = ["generate", "--shape", "talks.json", "-n", "3", "-d", depth, "-b", "1"];
        let more = ["-r", "1", "-q", "-o", "json", "--chunks", chunks];
        folder.bench(&[&args[..], &more].concat())
    };
    let (code, json, stderr) = ask("70", "1,5");
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&json).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let chunks: Vec<_> = rows.iter().map(|row| row["chunks"].as_u64().unwrap()).collect();
    assert_eq!(chunks, [1, 5].repeat(WAYS));
    assert!(rows.iter().all(|row| row["same_tokens"] == true));
    let (code, _, stderr) = ask("300", "300");
    assert!(code != 0 && stderr.contains("300 pieces"), "{code}: {stderr}");
}

#[test]
fn saved_runs_can_be_compared_and_drawn() {
    let folder = Folder::new();
    for (file, seed) in [("a.json", "1"), ("b.json", "1"), ("c.json", "2")] {
        folder.run(&["--save", file, "--seed", seed]);
    }
    let (code, same, stderr) = folder.bench(&["compare", "a.json", "b.json"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(same.matches("| same").count(), 6, "{same}");
    assert!(!same.contains("DIFFER"), "{same}");
    let (_, other, _) = folder.bench(&["compare", "a.json", "c.json"]);
    assert!(other.contains("THE LOGITS DIFFER in 6 of 6 tests"), "{other}");
    assert!(other.contains("note: the models differ"), "{other}");

    let (code, _, stderr) = folder.bench(&["plot", "a.json", "c.json", "--out", "runs.svg"]);
    assert_eq!(code, 0, "{stderr}");
    let svg = std::fs::read_to_string(folder.file("runs.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!(svg.matches("<polyline").count(), 2 * 2 * 2, "two runs, two batches, their floors");
}

/// The commit of the build is in the program, so a saved file is evidence wherever the program is
/// copied.
#[test]
fn every_saved_run_says_how_it_was_made() {
    let folder = Folder::new();
    let config = SHAPE.replace("\"vocab_size\": 256", "\"vocab_size\": 2048");
    std::fs::write(folder.file("talks.json"), config).unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = Command::new("git").current_dir(checkout).args(["rev-parse", "HEAD"]).output();
    let commit = git.ok().filter(|git| git.status.success());
    let commit = commit.map(|git| String::from_utf8(git.stdout).unwrap().trim().to_owned());
    for bench in [
        &["-p", "8", "-n", "2", "-b", "1", "-r", "1", "--bandwidth-mib", "8"][..],
        &["generate", "-n", "2", "-d", "8", "-b", "1", "-r", "1"],
        &["first-token", "-p", "32", "--chunk", "16", "-n", "4", "-r", "1"],
        &["speculate", "-n", "8", "--n-wrong", "0", "--right", "100", "--lengths", "2", "-r", "1"],
    ] {
        let args = [bench, &["--shape", "talks.json", "-q", "--save", "run.json"]].concat();
        let (code, _, stderr) = folder.bench(&args);
        assert_eq!(code, 0, "{stderr}");
        let run = std::fs::read_to_string(folder.file("run.json")).unwrap();
        let run: Value = serde_json::from_str(&run).unwrap();
        let command: Vec<&str> = ["weft", "bench"].into_iter().chain(args).collect();
        assert_eq!(run["command"], serde_json::json!(command));
        assert!(run["machine"]["cores"].is_u64() && run["device"].is_string(), "{run}");
        let model = run["model"].as_str().or(run["model"]["name"].as_str());
        assert_eq!(model, Some("talks"));
        if let Some(commit) = &commit {
            let found = run["commit"].as_str().unwrap_or_default();
            assert_eq!(found.trim_end_matches("-dirty"), commit, "{bench:?}");
        }
    }
}

/// The drawings of documents show runs that are kept.
#[test]
fn drawings_are_those_of_their_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let runs = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| root.join("bench/runs").join(name).display().to_string()).collect()
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    for (drawing, runs) in [
        ("speed.svg", runs(&["2026-11-17-epyc-2c-2f681d6/bench.json"])),
        (
            "first-token.svg",
            runs(&[
                "2026-11-17-epyc-2c-2f681d6/first-token.json",
                "2026-11-18-h200-e2f58f1/first-token-0.6b.json",
            ]),
        ),
    ] {
        let folder = Folder::new();
        let mut args: Vec<&str> = runs.iter().map(String::as_str).collect();
        args.splice(0..0, ["plot", "--out", drawing]);
        let (code, _, stderr) = folder.bench(&args);
        assert_eq!(code, 0, "{stderr}");
        let kept = root.join("docs").join(drawing);
        assert!(read(&folder.file(drawing)) == read(&kept), "{drawing} is not of its run");
    }
}

#[test]
fn a_model_folder_gives_real_weights() {
    let folder = Folder::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny");
    let args = ["-m", model.to_str().unwrap(), "-p", "8", "-n", "2", "-b", "1", "-r", "1"];
    let (code, stdout, stderr) =
        folder.bench(&[&args[..], &["--bandwidth-mib", "8", "-o", "json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let run: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(run["model"]["name"], "weft-tiny");
    assert_eq!(run["model"]["weights"], "files");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.file("odd.json"), r#"{"format": 7}"#).unwrap();
    let refused = |args: &[&str], code: i32, says: &str| {
        let (found, stdout, stderr) = folder.bench(args);
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: `{stderr}` does not say `{says}`");
    };
    refused(&["--shape", "qwen3-9b"], 2, "qwen3-0.6b, qwen3-1.7b");
    refused(&["-b", "9"], 2, "the limit is 8");
    refused(&["-b", "0"], 2, "at least 1");
    refused(&["-d", "x"], 2, "32k");
    refused(&["-o", "xml"], 2, "table");
    refused(&["--isa", "mmx"], 2, "avx512bf16");
    refused(&["-p", "0", "-n", "0"], 2, "nothing to measure");
    refused(&["--shape", "small.json", "-d", "500"], 2, "512");
    refused(&["-r", "3", "ops"], 2, "ops");
    refused(&["compare", "odd.json", "odd.json"], 2, "format 7");
    refused(&["compare", "absent.json", "odd.json"], 2, "absent.json");
    refused(&["plot", "odd.json"], 2, "--out");
    refused(&["--device", "cuda"], 5, "CUDA");
    refused(&["-m", "/no/such/folder"], 3, "/no/such/folder");
}

/// The basis of the comparison with transformers: the exported weights are those that are measured,
/// and the logits of given tokens do not depend on how they are cut into steps.
#[test]
fn exported_weights_and_forced_logits_are_what_is_run() {
    let folder = Folder::new();
    let export = ["export", "--shape", "small.json", "--seed", "5", "--out", "model"];
    let (code, _, stderr) = folder.bench(&export);
    assert_eq!(code, 0, "{stderr}");
    let model = folder.file("model").display().to_string();
    let hash = |subject: &[&str]| {
        let flags =
            ["-p", "20", "-n", "0", "-r", "1", "--bandwidth-mib", "8", "-t", "1", "-o", "json"];
        let (code, stdout, stderr) = folder.bench(&[subject, &flags].concat());
        assert_eq!(code, 0, "{stderr}");
        let run: Value = serde_json::from_str(&stdout).unwrap();
        run["rows"][0]["logits"]["hash"].clone()
    };
    assert_eq!(hash(&["--model", &model]), hash(&["--shape", "small.json", "--seed", "5"]));

    std::fs::write(folder.file("ids.json"), format!("{:?}", (0..70).collect::<Vec<_>>())).unwrap();
    let forced = |step: &str| {
        let flags =
            ["forced", "--tokens", "ids.json", "--out", "logits", "-t", "1", "--step-tokens"];
        let (code, _, stderr) = folder.bench(&[&flags[..], &[step, "--model", &model]].concat());
        assert_eq!(code, 0, "{stderr}");
        std::fs::read(folder.file("logits")).unwrap()
    };
    let by_one = forced("1");
    assert_eq!(by_one.len(), 70 * 256 * 4);
    assert!(by_one == forced("64") && by_one == forced("7"), "steps do not show");
    std::fs::write(folder.file("ids.json"), "[256]").unwrap();
    let refused = ["forced", "--tokens", "ids.json", "--out", "logits", "--model", &model];
    assert_eq!(folder.bench(&refused).0, 2);
}
