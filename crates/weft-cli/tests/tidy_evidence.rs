//! Checks documents against measurements: every run file says how it was made, a document names it,
//! and the figures of tables equal those of their files. `bench/README.md` has the rules. A table
//! of planned memory is compared with what weft plans.

use std::path::{Path, PathBuf};

use serde_json::Value;
use weft::device::{Chosen, Launches};
use weft::memory::{CONTEXTS, MemoryPlan, Room};
use weft_core::shapes;
use weft_core::weights::{Coded, Forms, Quantised, RandomWeights};

const FACTS: [&str; 4] = ["command", "commit", "machine", "model"];
/// What follows the table of planned memory.
const PLANNED: &str = "<!-- planned -->";
const UNITS: [&str; 8] = ["tok/s", "t/s", "ms", "µs", "us", "GB/s", "TB/s", "%"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn runs() -> PathBuf {
    root().join("bench/runs")
}

/// The files directly in a folder, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// All run files, by `folder/name`.
fn run_files() -> Vec<(String, PathBuf)> {
    let files = entries(&runs()).into_iter().flat_map(|folder| entries(&folder));
    files.map(|path| (format!("{}/{}", name(path.parent().unwrap()), name(&path)), path)).collect()
}

/// The documents for readers, with their paths from the root.
fn documents() -> Vec<(String, String)> {
    let mut found = vec![root().join("bench/README.md"), root().join("fuzz/README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        let (inner, files): (Vec<_>, Vec<_>) =
            entries(&folder).into_iter().partition(|path| path.is_dir());
        folders.extend(inner);
        found.extend(files);
    }
    found.extend(entries(&root()));
    let markdown = found.into_iter().filter(|path| name(path).ends_with(".md"));
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    markdown.map(read).collect()
}

// ---- run files ---------------------------------------------------------------------------------

/// A file's values: a document, or a list of the values in its lines.
fn read_json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let read = |text: &str| serde_json::from_str(text).map_err(|error| error.to_string());
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("json") => read(&text),
        Some("jsonl") => text.lines().map(read).collect::<Result<_, _>>().map(Value::Array),
        _ => Err("its figures cannot be read: it is neither .json nor .jsonl".to_owned()),
    }
}

/// A fact about how a file was made, by name. A list has facts in its first element, a text in
/// lines `# name: value` at its top.
fn fact(path: &Path, fact: &str) -> Option<String> {
    if path.extension().is_some_and(|ending| ending == "txt") {
        let text = std::fs::read_to_string(path).ok()?;
        let top = text.lines().take_while(|line| line.starts_with("# "));
        let value = top.filter_map(|line| line[2..].split_once(": ")).find(|found| found.0 == fact);
        return value.map(|found| found.1.to_owned());
    }
    let json = read_json(path).ok()?;
    let about = json.as_array().map_or(&json, |list| &list[0]);
    match &about[fact] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
    .filter(|text| !text.is_empty())
}

/// Whether a folder's name is `<date>-<machine>-<commit>`.
fn is_run_name(name: &str) -> bool {
    let digits = |text: &str, n| text.len() == n && text.bytes().all(|b| b.is_ascii_digit());
    let Some((front, commit)) = name.rsplit_once('-') else { return false };
    let parts: Vec<&str> = front.splitn(4, '-').collect();
    let [year, month, day, machine] = parts[..] else { return false };
    let of_machine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    digits(year, 4)
        && digits(month, 2)
        && digits(day, 2)
        && !machine.is_empty()
        && machine.bytes().all(of_machine)
        && commit.len() == 7
        && commit.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[test]
fn run_folders_are_named_by_date_machine_and_commit() {
    assert!(!entries(&runs()).is_empty());
    for folder in entries(&runs()) {
        assert!(folder.is_dir(), "{} lies in no folder of a run", folder.display());
        assert!(is_run_name(name(&folder)), "{} is no <date>-<machine>-<commit>", folder.display());
    }
    for wrong in ["2026-1-02-h200-0123abc", "2026-01-02-0123abc", "2026-01-02-h200-0123abg", "x"] {
        assert!(!is_run_name(wrong), "{wrong}");
    }
}

#[test]
fn every_run_file_says_how_it_was_made() {
    for (name, path) in run_files() {
        for wanted in FACTS {
            assert!(fact(&path, wanted).is_some(), "bench/runs/{name} has no {wanted}");
        }
        let commit = fact(&path, "commit").unwrap();
        let of_folder = &name.split('/').next().unwrap().rsplit_once('-').unwrap().1;
        assert!(commit.contains(of_folder), "bench/runs/{name} is of {commit}");
    }
}

#[test]
fn every_run_file_is_named_by_a_document() {
    let documents = documents();
    for (name, _) in run_files() {
        let is_named = documents.iter().any(|(_, text)| text.contains(&name));
        assert!(is_named, "no document names bench/runs/{name}");
    }
}

// ---- documents ---------------------------------------------------------------------------------

#[test]
fn figures_of_documents_are_those_of_their_files() {
    let mut n_figures = 0;
    for (name, text) in documents() {
        match check(&text, &runs()) {
            Ok(found) => n_figures += found,
            Err(problem) => panic!("{name}: {problem}"),
        }
    }
    assert!(n_figures > 100, "only {n_figures} figures are checked");
}

/// A list of figures is invisible, so the text names its files too.
#[test]
fn documents_show_readers_the_files_of_their_figures() {
    for (name, text) in documents().iter().filter(|(name, _)| name != "bench/README.md") {
        let mut parts = text.split("<!-- figures\n");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        let mut files = Vec::new();
        for part in parts {
            let (list, after) = part.split_once("-->").unwrap();
            files.extend(list.lines().filter(|line| !line.is_empty() && !line.contains(" = ")));
            shown.push_str(after);
        }
        for file in files {
            assert!(shown.contains(file), "{name} has figures of {file} and does not name it");
        }
    }
}

/// Checks a document: returns the number of correct figures, or the first wrong one.
fn check(text: &str, runs: &Path) -> Result<usize, String> {
    let mut n_figures = 0;
    let mut blocks = text.split("\n\n").peekable();
    while let Some(block) = blocks.next() {
        // A list of figures follows its table or paragraph, with or without an empty line between.
        let (shown, list) = match block.split_once("<!-- figures\n") {
            Some((shown, list)) => (shown, Some(list)),
            None => (block, blocks.peek().and_then(|next| next.strip_prefix("<!-- figures\n"))),
        };
        let is_planned = blocks.peek().is_some_and(|next| next.starts_with(PLANNED));
        if shown.trim().is_empty() || is_planned {
            continue;
        }
        let lines = list.map(|list| list.split("-->").next().unwrap_or_default());
        let figures = lines.map_or(Ok(Vec::new()), |lines| read_figures(lines, runs))?;
        for figure in &figures {
            figure.check(shown)?;
        }
        let listed: Vec<&str> = figures.iter().map(|figure| number(&figure.text)).collect();
        let table: Vec<&str> = shown.lines().filter(|line| line.starts_with('|')).collect();
        let in_table = figures_of_table(&table)?;
        if !table.is_empty() && in_table != listed {
            return Err(format!("{}: its figures are {in_table:?}, listed {listed:?}", table[0]));
        }
        n_figures += figures.len();
    }
    Ok(n_figures)
}

/// The table of the memory that weft plans for a context of 8,192 tokens, on a CPU of 16 threads.
fn planned_memory() -> String {
    const THREADS: usize = 16;
    let gigabytes = |bytes: u64| {
        let value = bytes as f64 / 1e9;
        let digits = if value < 9.995 { 2 } else { 1 };
        format!("{value:.digits$}")
    };
    let mut lines = vec![
        "| model | bf16 | int8 | Q4_K_M | int4 | KV rows (included) |".to_owned(),
        "|---|--:|--:|--:|--:|--:|".to_owned(),
    ];
    for name in ["0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B"] {
        let config = shapes::config(&format!("qwen3-{}", name.to_lowercase())).unwrap();
        let plain = || RandomWeights::new(&config, 0);
        let int = |bits| Forms::of(&Quantised::new(plain(), Coded::int(bits)), &config);
        let q4_k_m = Forms::of(&Quantised::q4_k_m(plain(), &config), &config);
        let need = |forms: &Forms, device| {
            let room = Room { context: 8192, contexts: CONTEXTS, kv_memory: None };
            MemoryPlan::with_free(&config, forms, &room, device, Some(THREADS), None).unwrap().need
        };
        let gpu = Chosen::Cuda(Launches::Auto);
        let cells = [Forms::default(), int(8), q4_k_m, int(4)].map(|forms| {
            let [on_gpu, on_cpu] = [gpu, Chosen::Cpu].map(|device| need(&forms, device).total());
            format!("{} / {}", gigabytes(on_gpu), gigabytes(on_cpu))
        });
        let kv = [gpu, Chosen::Cpu].map(|device| need(&Forms::default(), device).kv);
        assert_eq!(kv[0], kv[1], "{name}");
        lines.push(format!("| Qwen3-{name} | {} | {} |", cells.join(" | "), gigabytes(kv[0])));
    }
    lines.join("\n")
}

#[test]
fn the_table_of_memory_is_what_weft_plans() {
    let planned = planned_memory();
    let all = documents();
    let marked: Vec<_> =
        all.iter().filter(|(_, text)| text.lines().any(|l| l == PLANNED)).collect();
    let [(name, text)] = marked[..] else { panic!("one document has the table") };
    assert_eq!((&**name, text.matches(PLANNED).count()), ("README.md", 1));
    let table = format!("\n\n{planned}\n\n{PLANNED}\n");
    assert!(text.contains(&table), "README.md has another table than weft plans:\n{planned}");
}

/// The numbers in the right-aligned columns of a table, in reading order.
fn figures_of_table<'a>(table: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let cells = |line: &'a str| -> Vec<&'a str> {
        line.trim().trim_matches('|').split('|').map(str::trim).collect()
    };
    let [header, aligned, body @ ..] = table else { return Ok(Vec::new()) };
    let is_right: Vec<bool> =
        cells(aligned).iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
    let is_measured = |cell: &&str| UNITS.iter().any(|unit| has_unit(cell, unit));
    let of_unit = body.iter().flat_map(|line| cells(line)).any(|cell| is_measured(&cell));
    if of_unit && !is_right.contains(&true) {
        return Err(format!("{header}: columns of figures are right-aligned"));
    }
    let rows = body.iter().flat_map(|line| {
        cells(line).into_iter().zip(is_right.clone()).filter(|cell| cell.1).map(|cell| cell.0)
    });
    Ok(rows.flat_map(numbers).collect())
}

/// Whether a cell has a number with this unit.
fn has_unit(cell: &str, unit: &str) -> bool {
    let mut words = cell.split_whitespace().map(|word| word.trim_end_matches([',', ')', ';']));
    let mut before = "";
    words.any(|word| {
        let found = word == unit && before.ends_with(|c: char| c.is_ascii_digit());
        before = word;
        found
    })
}

/// The numbers in a text: `1,180`, `3.9`, `5.4e-05`.
fn numbers(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let tail = &rest[start..];
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.' | 'e' | '-');
        let end = tail.find(|c| !is_part(c)).unwrap_or(tail.len());
        let one = tail[..end].trim_end_matches([',', '.', 'e', '-']);
        found.push(one);
        rest = &tail[end.max(1)..];
    }
    found
}

fn number(text: &str) -> &str {
    numbers(text).first().copied().unwrap_or_default()
}

/// A figure in a document, and its value in the file.
struct Figure {
    text: String,
    from: String,
    value: f64,
}

impl Figure {
    /// Checks that the figure is in the text, and equals the value rounded to as many digits.
    fn check(&self, shown: &str) -> Result<(), String> {
        let Self { text, from, value } = self;
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !flat(shown).contains(&flat(text)) {
            return Err(format!("`{text}` is listed, and is not in the text before its list"));
        }
        let digits = number(text).replace(',', "");
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let decimals = mantissa.split_once('.').map_or(0, |parts| parts.1.len());
        let exponent: i32 = exponent.parse().map_err(|_| format!("`{text}` is no number"))?;
        let unit = 10f64.powi(exponent - i32::try_from(decimals).unwrap());
        let figure: f64 = digits.parse().map_err(|_| format!("`{text}` is no number"))?;
        if (figure - value).abs() > unit * 0.500_001 {
            return Err(format!("`{text}` is {value} in {from}"));
        }
        Ok(())
    }
}

/// Lines of a list: a file for those that follow it, or `figure = expression`.
fn read_figures(lines: &str, runs: &Path) -> Result<Vec<Figure>, String> {
    let mut found = Vec::new();
    let mut file: Option<(&str, Value)> = None;
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((text, expression)) = line.split_once(" = ") else {
            let json = read_json(&runs.join(line)).map_err(|why| format!("{line}: {why}"))?;
            file = Some((line, json));
            continue;
        };
        let (name, json) = file.as_ref().ok_or(format!("`{line}` follows no file"))?;
        let from = format!("{name}, {expression}");
        let value = evaluate(expression, json).map_err(|why| format!("{from}: {why}"))?;
        found.push(Figure { text: text.to_owned(), from, value });
    }
    Ok(found)
}

/// Values and numbers, multiplied or divided from left to right.
fn evaluate(expression: &str, json: &Value) -> Result<f64, String> {
    let mut result = None;
    let mut divides = false;
    for word in expression.replace(" / ", "\n/\n").replace(" * ", "\n*\n").lines() {
        if matches!(word, "/" | "*") {
            divides = word == "/";
            continue;
        }
        let value = word.parse().or_else(|_| value(word, json))?;
        result = Some(match result {
            None => value,
            Some(before) if divides => before / value,
            Some(before) => before * value,
        });
    }
    result.ok_or("it is empty".to_owned())
}

/// A path to one number, or `median`, `min` or `max` and a path to several.
fn value(word: &str, json: &Value) -> Result<f64, String> {
    let (reduce, path) = match word.split_once(' ') {
        Some((reduce @ ("median" | "min" | "max"), path)) => (Some(reduce), path),
        _ => (None, word),
    };
    let mut found = vec![json];
    for segment in path.split('/') {
        found = found.into_iter().flat_map(|value| inside(value, segment)).collect();
    }
    let several = found.iter().flat_map(|value| match value {
        Value::Array(list) => list.iter().collect(),
        one => vec![*one],
    });
    let mut numbers: Vec<f64> = several.filter_map(Value::as_f64).collect();
    numbers.sort_by(f64::total_cmp);
    let (n, middle) = (numbers.len(), numbers.len() / 2);
    match (reduce, n) {
        (_, 0) => Err("there is no such number".to_owned()),
        (None, 1) | (Some("min"), _) => Ok(numbers[0]),
        (None, _) => Err(format!("these are {n} numbers")),
        (Some("max"), _) => Ok(numbers[n - 1]),
        _ if n % 2 == 1 => Ok(numbers[middle]),
        _ => Ok(f64::midpoint(numbers[middle - 1], numbers[middle])),
    }
}

/// The values of a path segment: a field, an index, all elements of a list (`*`), or those with
/// given fields (`test=tg64,batch=1`).
fn inside<'a>(value: &'a Value, segment: &str) -> Vec<&'a Value> {
    let is = |value: &Value, wanted: &str| match value {
        Value::String(text) => text == wanted,
        other => serde_json::to_string(other).is_ok_and(|text| text == wanted),
    };
    match value {
        Value::Array(list) if segment == "*" => list.iter().collect(),
        Value::Array(list) if segment.contains('=') => {
            let conditions: Vec<_> =
                segment.split(',').filter_map(|condition| condition.split_once('=')).collect();
            let fits = |one: &&Value| conditions.iter().all(|(key, text)| is(&one[*key], text));
            list.iter().filter(fits).collect()
        }
        Value::Array(list) => {
            segment.parse().ok().and_then(|at: usize| list.get(at)).into_iter().collect()
        }
        Value::Object(fields) => fields.get(segment).into_iter().collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_figure_that_its_file_does_not_prove_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let run = r#"{"rows": [{"test": "tg4", "batch": 1, "tps": 1180.6, "samples": [1, 3, 8, 9]},
                           {"test": "tg4", "batch": 2, "tps": 2361.2, "samples": [5]}]}"#;
    std::fs::write(folder.path().join("a.json"), run).unwrap();
    std::fs::write(folder.path().join("b.jsonl"), "{\"x\": 1}\n{\"way\": \"w\", \"x\": 2.5e-5}\n")
        .unwrap();
    let one = "rows/test=tg4,batch=1";
    let document = |figure: &str, list: &str| {
        format!(
            "# x\n\n| a | tok/s |\n|---|--:|\n| b 7 | {figure} |\n<!-- figures\n{list}\n-->\n\ny\n"
        )
    };
    let holds = |figure: &str, list: &str| check(&document(figure, list), folder.path());
    assert_eq!(holds("1,181", &format!("a.json\n1,181 = {one}/tps")), Ok(1));
    let both = format!("a.json\n2.0 = rows/1/tps / {one}/tps\n118 % = {one}/tps / 1000 * 100");
    assert_eq!(holds("2.0 × and 118 %", &both), Ok(2));
    let range = format!(
        "a.json\n1 = min {one}/samples\n5.5 = median {one}/samples\n9 = max rows/*/samples"
    );
    assert_eq!(holds("1 to 9, 5.5", &range).unwrap_err().matches("listed").count(), 1);
    assert_eq!(holds("1 to 5.5, 9", &range), Ok(3));
    assert_eq!(holds("2.5e-05", "b.jsonl\n2.5e-05 = way=w/x"), Ok(1));
    let wrong = |figure: &str, list: &str, says: &str| {
        let problem = holds(figure, list).unwrap_err();
        assert!(problem.contains(says), "{problem}");
    };
    wrong("1,180", &format!("a.json\n1,180 = {one}/tps"), "`1,180` is 1180.6 in a.json");
    wrong("1,181", "", "listed []");
    wrong("1,181 and 7", &format!("a.json\n1,181 = {one}/tps"), "its figures are");
    wrong("1,181", &format!("a.json\n1,181 = {one}/tps\n9 = {one}/tps"), "`9` is listed");
    wrong("1,181", "a.json\n1,181 = rows/test=tg4/tps", "these are 2 numbers");
    wrong("1,181", "a.json\n1,181 = rows/test=tg5/tps", "no such number");
    wrong("1,181", "c.json\n1,181 = rows/0/tps", "c.json");
    let left = "| a | b |\n|---|---|\n| c | 12 tok/s |\n";
    assert!(check(left, folder.path()).unwrap_err().contains("right-aligned"));
    assert_eq!(check("| a | b |\n|---|---|\n| Llama 3 | 64 rows |\n", folder.path()), Ok(0));
    let prose = "It takes 1 ms.\n\n<!-- figures\na.json\n1 ms = rows/0/samples/0\n-->\n";
    assert_eq!(check(prose, folder.path()), Ok(1));
}
