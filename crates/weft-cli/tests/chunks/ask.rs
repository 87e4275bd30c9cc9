//! `weft ask` in one process after another.

use std::process::Stdio;

use serde_json::Value;

use crate::home::{ANSWER, DOCUMENTS, Home, QUESTION, SYSTEM, pieces, sources};

const COMPUTED: &str = "computed";
const DISK: &str = "disk";

/// An answer without the values that differ from run to run.
fn said(answer: &Value) -> (String, u64) {
    (answer["text"].as_str().unwrap().to_owned(), answer["prompt_tokens"].as_u64().unwrap())
}

#[test]
fn a_second_process_finds_the_documents_on_disk() {
    let home = Home::new();
    let cold = home.ask(&DOCUMENTS, &[]);
    assert_eq!(cold["text"], ANSWER);
    assert_eq!(cold["cached_tokens"], 0);
    assert_eq!(sources(&cold), [COMPUTED; 5]);
    assert_eq!(home.rows().len(), 4, "system and documents; a query is not kept");
    let warm = home.ask(&DOCUMENTS, &[]);
    assert_eq!(said(&warm), said(&cold));
    assert_eq!(sources(&warm), [DISK, DISK, DISK, DISK, COMPUTED]);
    let pieces = pieces(&warm);
    let kept: u64 = pieces[..4].iter().map(|piece| piece.1).sum();
    assert_eq!(warm["cached_tokens"].as_u64(), Some(kept), "all but the query");
    let saved = warm["chunk_report"]["saved_ms"].as_f64().unwrap();
    let estimate = warm["chunk_report"]["cold_ms_estimate"].as_f64().unwrap();
    assert!(estimate > 0.0 && saved <= estimate, "{saved} of {estimate}");
    assert_eq!(home.rows().len(), 4, "nothing is written twice");
}

#[test]
fn another_order_is_computed_where_it_must_be_exact_and_moved_where_it_may_not() {
    let home = Home::new();
    let [a, b, c] = DOCUMENTS;
    home.ask(&[a, b, c], &[]);
    let exact = home.ask(&[a, c, b], &[]);
    assert_eq!(sources(&exact), [DISK, DISK, COMPUTED, COMPUTED, COMPUTED]);
    home.ask(&[a, b, c], &["--reuse", "anchored"]);
    let moved = home.ask(&[c, a, b], &["--reuse", "anchored"]);
    assert_eq!(sources(&moved), [DISK, DISK, DISK, DISK, COMPUTED]);
    assert_eq!(moved["text"], ANSWER);
    let pieces = pieces(&moved);
    let system = pieces[0].1;
    let mut position = system;
    for (kind, tokens, _, _, shift) in &pieces[1..4] {
        assert_eq!((kind.as_str(), *shift), ("context", (position - system) as i64));
        position += tokens;
    }
    let other =
        home.run(&["ask", "-q", "--json", "--reuse", "isolated", "--context", b, "--", QUESTION]);
    assert_eq!(sources(&other.json()), [COMPUTED; 3], "isolated rows are others");
}

#[test]
fn repairs_are_counted_and_leave_kept_rows_alone() {
    let home = Home::new();
    let [a, b, c] = DOCUMENTS;
    home.ask(&[a, b, c], &["--reuse", "anchored"]);
    let repaired = |repair: &str| -> Vec<u64> {
        let answer = home.ask(&[c, a, b], &["--reuse", "anchored", "--repair", repair]);
        let chunks = answer["chunk_report"]["chunks"].as_array().unwrap();
        chunks.iter().map(|chunk| chunk["repaired_tokens"].as_u64().unwrap()).collect()
    };
    assert_eq!(repaired("link:16"), [0, 0, 16, 16, 0]);
    assert!(repaired("blend:0.5").iter().sum::<u64>() > 32);
    assert_eq!(repaired("none"), [0; 5]);
}

#[test]
fn an_edited_document_is_computed_with_what_follows_it_and_nothing_else() {
    let home = Home::new();
    let [a, b, c] = DOCUMENTS;
    home.ask(&[a, b, c], &[]);
    let text = std::fs::read_to_string(home.file(b)).unwrap();
    home.write(b, &format!("{text} It is said that the mast is red."));
    let edited = home.ask(&[a, b, c], &[]);
    assert_eq!(sources(&edited), [DISK, DISK, COMPUTED, COMPUTED, COMPUTED]);
    let pieces = pieces(&edited);
    assert!(pieces[2].2 >= 32, "what stands before the edit is kept: {pieces:?}");
    assert!(pieces[2].2 < pieces[2].1 && pieces[3].2 == 0, "{pieces:?}");
    let cold = home.ask(&[a, b, c], &["--no-cache"]);
    assert_eq!(said(&cold), said(&edited));
}

#[test]
fn without_a_cache_nothing_is_read_or_written() {
    let home = Home::new();
    let cold = home.ask(&DOCUMENTS, &["--no-cache"]);
    assert_eq!(cold["text"], ANSWER);
    assert!(!home.file(".cache").exists());
    home.ask(&DOCUMENTS, &[]);
    let again = home.ask(&DOCUMENTS, &["--no-cache"]);
    assert_eq!((again["cached_tokens"].as_u64(), said(&again)), (Some(0), said(&cold)));
    // The environment can set the switch too.
    let args = ["ask", "-q", "--json", "--system", SYSTEM, "--context", DOCUMENTS[0], QUESTION];
    let by_variable = home.run_with(&args, ("WEFT_NO_CACHE", "1")).json();
    assert_eq!(by_variable["cached_tokens"], 0);
    assert!(home.run(&args).json()["cached_tokens"].as_u64().unwrap() > 0);
    // Nor is it written down that a chunk was used.
    home.chunk(&["add", DOCUMENTS[0], "--name", "n"]).ok();
    for (more, uses) in [(&["--no-cache"][..], 0), (&[], 1)] {
        home.ask(&["n"], more);
        assert_eq!(home.chunk(&["show", "n", "--json"]).json()["uses"], uses, "{more:?}");
    }
}

#[test]
fn verify_distinguishes_exact_from_approximate() {
    let home = Home::new();
    let [a, b, c] = DOCUMENTS;
    home.ask(&[a, b, c], &[]);
    let exact = home.ask(&[a, b, c], &["--verify"]);
    let of = |answer: &Value, name: &str| answer["verification"][name].as_f64().unwrap();
    assert_eq!(exact["verification"]["exact"], true);
    assert_eq!((of(&exact, "kl"), of(&exact, "differing_tokens")), (0.0, 0.0));
    assert_eq!(exact["verification"]["tokens"], exact["generated_tokens"]);
    let moved = home.ask(&[c, b, a], &["--reuse", "isolated", "--verify"]);
    assert_eq!(moved["verification"]["exact"], false);
    assert!(of(&moved, "kl") > 0.0);
    assert!(of(&moved, "max_abs_logprob_difference") >= of(&moved, "mean_abs_logprob_difference"));
    let ran = home.run(&["verify", "--context", a, "--", QUESTION]).ok();
    assert!(ran.stderr.contains("same answer, bit for bit"), "{}", ran.stderr);
    assert_eq!(ran.stdout, format!("{ANSWER}\n"));
}

#[test]
fn the_ribbon_in_a_pipe_is_letters_in_80_columns() {
    let home = Home::new();
    let [a, b, _] = DOCUMENTS;
    let args = ["ask", "-q", "--stats", "--context", a, "--context", b, "--", QUESTION];
    home.run(&args).ok();
    let ran = home.run(&args).ok();
    assert_eq!(ran.stdout, format!("{ANSWER}\n"), "the answer alone");
    assert!(!ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() < 80), "{}", ran.stderr);
    let segments: Vec<&str> = lines[0].split('|').collect();
    let letters: Vec<char> = segments.iter().map(|s| s.chars().next().unwrap()).collect();
    assert_eq!(letters, ['c', 'd', 'd', 'c'], "{}", lines[0]);
    assert!(segments[2].len() > segments[1].len(), "krogaste has more tokens: {}", lines[0]);
    assert_eq!(lines[1], "c computed  d disk");
    for name in ["nusonix.txt", "krogaste.txt"] {
        let row = lines.iter().find(|line| line.contains(name)).unwrap();
        assert!(
            row.starts_with("context ") && row.contains(" disk ") && row.contains('%'),
            "{row}"
        );
    }
    let last = lines.last().unwrap();
    assert!(last.starts_with("saved ") && last.contains(" of "), "{last}");
}

#[test]
fn system_prompts_are_texts_files_or_chunks() {
    let home = Home::new();
    home.write("prompt.txt", "Answer in capitals.\n");
    let answer = |system: &str| {
        home.run(&["ask", "-q", "--system", system, "--context", "nusonix.txt", QUESTION]).word()
    };
    assert_eq!(answer("Answer in capitals."), "VUBEGOK");
    assert_eq!(answer("@prompt.txt"), "VUBEGOK");
    home.chunk(&["add", "prompt.txt", "--kind", "system", "--name", "loud"]).ok();
    assert_eq!(answer("loud"), "VUBEGOK");
    home.chunk(&["add", "nusonix.txt", "--name", "town"]).ok();
    let wrong = home.run(&["ask", "--system", "town", QUESTION]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("context chunk"), "{}", wrong.stderr);
    let run = |system: &str| {
        let args = ["run", "-q", "--json", "--system", system, "hello"];
        home.run(&args).json()["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(run("loud"), run("Answer in capitals."));
}

#[test]
fn settings_come_from_flag_environment_and_file() {
    let home = Home::new();
    let shown = |args: &[&str], variable: (&str, &str)| {
        home.run_with(&[&["show", "--json"], args].concat(), variable).json()
    };
    let default = shown(&[], ("WEFT_CONFIG", ""));
    assert_eq!(default["disk_cache_bytes"], 4_u64 << 30);
    assert_eq!(default["cache_dir"], home.file(".cache/weft/kv").to_str().unwrap());
    let page = 64 * default["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!(default["kv_page_bytes"].as_u64(), Some((2 * 64 + 32) * page), "two contexts");
    home.write(
        "config.toml",
        "cache-dir = \"from-file\"\nram-cache = \"1m\"\nkv-memory = \"40m\"\n",
    );
    let file = home.file("config.toml");
    let by_file = shown(&[], ("WEFT_CONFIG", file.to_str().unwrap()));
    assert_eq!(
        (&by_file["cache_dir"], &by_file["ram_cache_bytes"]),
        (&"from-file".into(), &(1 << 20).into())
    );
    assert_eq!(by_file["kv_page_bytes"].as_u64(), Some((40 << 20) / page * page));
    assert_eq!(shown(&[], ("WEFT_CACHE_DIR", "from-env"))["cache_dir"], "from-env");
    let by_flag = shown(&["--cache-dir", "flag"], ("WEFT_CACHE_DIR", "from-env"));
    assert_eq!(by_flag["cache_dir"], "flag");
    let little = home.run(&["ask", "--kv-memory", "1m", "hello"]);
    assert_eq!(little.code, 2);
    assert!(
        little.stderr.contains("--ctx-size") && little.stderr.contains("4096"),
        "{}",
        little.stderr
    );
    home.ask(&DOCUMENTS, &["--cache-dir", "elsewhere"]);
    assert!(home.file("elsewhere").exists() && !home.file(".cache").exists());
    let doctor = home.run(&["doctor", "--cache-dir", "elsewhere"]).ok().stdout;
    assert!(doctor.contains("elsewhere; 4 files"), "{doctor}");
}

#[test]
fn files_stand_on_either_side_of_the_question() {
    let home = Home::new();
    let [a, b, _] = DOCUMENTS;
    let cold = home.run(&["ask", "-q", "--json", "--context", a, "--context", b, QUESTION]).json();
    for words in [[a, b, QUESTION], [a, QUESTION, b], [QUESTION, a, b]] {
        let answer = home.run(&[&["ask", "-q", "--json"], &words[..]].concat()).json();
        assert_eq!(said(&answer), said(&cold), "{words:?}");
    }
    let answer = home.run(&["ask", "-q", "weft-tiny", a, QUESTION]).word();
    assert_eq!(answer, ANSWER, "a model before the documents");
}

#[test]
fn a_file_or_a_model_that_is_not_there_is_an_error() {
    let home = Home::new();
    let refused = |args: &[&str], code: i32, says: &[&str]| {
        let ran = home.run(&[&["ask"], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {}", ran.stderr);
        for part in says {
            assert!(ran.stderr.contains(part), "{args:?}: no `{part}` in {}", ran.stderr);
        }
    };
    refused(&["nusonx.txt", QUESTION], 2, &["nusonx.txt", "did you mean nusonix.txt?"]);
    refused(&["nusonx.txt", "Who?"], 2, &["nusonx.txt", "did you mean nusonix.txt?"]);
    refused(&[QUESTION, "docs/nusonx.txt"], 2, &["docs/nusonx.txt"]);
    refused(&["minutes", QUESTION], 2, &["--context minutes"]);
    refused(&["nusonix.txt"], 2, &["no question"]);
    refused(&["Qwen/Qwen3-0.6B", "nusonix.txt", "Who?"], 3, &["Qwen/Qwen3-0.6B", "weft pull"]);
}

#[test]
fn stdin_is_a_document() {
    let home = Home::new();
    let text = std::fs::read_to_string(home.file(DOCUMENTS[0])).unwrap();
    fn ask<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["ask", "-q", "--json", "--system", SYSTEM], args].concat()
    }
    let by_name = home.ask(&[DOCUMENTS[0]], &[]);
    for args in [&[QUESTION][..], &["--context", "-", QUESTION], &["-", QUESTION]] {
        let piped = home.feed(&ask(args), &text).json();
        assert_eq!(said(&piped), said(&by_name), "{args:?}");
        assert_eq!(sources(&piped), [DISK, DISK, COMPUTED], "the same text is the same chunk");
    }
    let file = std::fs::File::open(home.file(DOCUMENTS[0])).unwrap();
    let output = home.command(&ask(&[QUESTION])).stdin(file).output().unwrap();
    assert_eq!(said(&serde_json::from_slice(&output.stdout).unwrap()), said(&by_name));
    let both = home.feed(&ask(&[DOCUMENTS[1], "-", QUESTION]), &text).json();
    assert_eq!(said(&both), said(&home.ask(&[DOCUMENTS[1], DOCUMENTS[0]], &[])));
    let named = home.feed(&ask(&[DOCUMENTS[1], QUESTION]), &text).json();
    assert_eq!(said(&named), said(&home.ask(&[DOCUMENTS[1]], &[])), "stdin is not read");
    assert!(home.feed(&["ask", QUESTION], &text).ok().stderr.contains("stdin is a document"));
    // Stdin of `run` is /dev/null.
    let alone = home.run(&ask(&[QUESTION])).json();
    assert_eq!(pieces(&alone).len(), 2, "the system prompt and the question");
    for empty in [home.feed(&ask(&[QUESTION]), "\n"), home.run(&["ask", "-", QUESTION])] {
        assert!(empty.code == 2 && empty.stderr.contains("stdin is empty"), "{}", empty.stderr);
    }
    let twice = home.run(&["ask", "--context", "-", "-", QUESTION]);
    assert!(twice.code == 2 && twice.stderr.contains("only once"), "{}", twice.stderr);
}

#[test]
fn a_pipe_that_stays_silent_does_not_hang_a_question() {
    let home = Home::new();
    let start = |args: &[&str]| {
        let mut command = home.command(&[&["ask"], args].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // `wait_with_output` would close the pipe first, so it is held here.
    let mut children = [start(&["-q", DOCUMENTS[0], QUESTION]), start(&["-q", QUESTION])];
    let pipes = children.each_mut().map(|child| child.stdin.take().unwrap());
    let [with_document, alone] = children.map(|child| child.wait_with_output().unwrap());
    drop(pipes);
    let stderr = String::from_utf8(with_document.stderr).unwrap();
    assert_eq!(String::from_utf8(with_document.stdout).unwrap(), format!("{ANSWER}\n"), "{stderr}");
    assert_eq!(stderr, "", "stdin is not read beside other documents");
    let stderr = String::from_utf8(alone.stderr).unwrap();
    assert_eq!((alone.status.code(), alone.stdout.as_slice()), (Some(2), &[][..]), "{stderr}");
    assert!(stderr.contains("--context -") && stderr.contains("</dev/null"), "{stderr}");
}
