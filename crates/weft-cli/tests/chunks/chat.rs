//! `weft chat`: turns that reuse rows, documents, and commands, through stdin.

use std::path::Path;

use crate::home::{Home, Ran};

/// The bundled model with a template that supports thinking: if it is off, the prompt ends with an
/// empty thought, which is not in the history.
fn thinking_model(home: &Home) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (assets, prompts) =
        (crates.join("../assets/weft-tiny"), crates.join("weft-core/tests/prompts"));
    let folder = home.file("model");
    std::fs::create_dir(&folder).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(assets.join(name), folder.join(name)).unwrap();
    }
    std::fs::copy(prompts.join("qwen3.jinja"), folder.join("chat_template.jinja")).unwrap();
    folder.to_str().unwrap().to_owned()
}

/// One answer's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    prompt: usize,
    cached: usize,
    generated: usize,
    /// Tokens of its last piece, from `/chunks`.
    query: usize,
}

/// Reads the lines that follow each answer, and the table of `/chunks` after it.
fn figures(ran: &Ran) -> Vec<Figures> {
    let number = |text: &str| text.split_whitespace().next().unwrap().parse::<usize>().unwrap();
    let mut all: Vec<Figures> = Vec::new();
    for line in ran.stderr.lines() {
        if let Some((prompt, rest)) = line.split_once(" tok prompt") {
            let cached = rest.strip_prefix(" (").map_or(0, number);
            let generated = rest.split(" · ").find_map(|part| part.strip_suffix(" tok")).unwrap();
            let (prompt, generated) = (number(prompt), number(generated));
            all.push(Figures { prompt, cached, generated, query: 0 });
        } else if let Some(row) = line.strip_prefix("query ") {
            all.last_mut().unwrap().query = number(row.trim_start().strip_prefix('-').unwrap());
        }
    }
    all
}

const TURNS: [&str; 10] = [
    "Who is the ruler of Nusonix?",
    "In which year was Nusonix founded?",
    "What is the name of the river of Nusonix?",
    "And now, please, when you have read the whole story once more from its begin to its end and have \
     thought about all that it tells: how many bridges are there in Nusonix?",
    "Which animal is on the flag of Nusonix?",
    "Who gives the orders on board the Krogaste?",
    "Which colour have the gates?",
    "Who is the ruler of Nusonix?",
    "Thank you.",
    "In which year was Nusonix founded?",
];

fn talk(home: &Home, model: &str, args: &[&str]) -> (Vec<String>, Vec<Figures>) {
    let turns = TURNS.map(|turn| format!("{turn}\n/chunks\n")).concat();
    let lines = format!("/context nusonix.txt\n{turns}");
    let all = [&["chat", model, "-n", "24", "--temp", "0"], args].concat();
    let ran = home.feed(&all, &lines).ok();
    let figures = figures(&ran);
    assert_eq!(figures.len(), TURNS.len(), "{}", ran.stderr);
    (ran.stdout.lines().map(str::to_owned).collect(), figures)
}

/// Rows of an empty thought that the template leaves out of the history.
fn thought(home: &Home, model: &str) -> usize {
    let tokens = |flag| {
        let answer = home.run(&["run", model, "-q", "--json", "-n", "1", flag, "hello"]).json();
        answer["prompt_tokens"].as_u64().unwrap() as usize
    };
    tokens("--no-think") - tokens("--think")
}

#[test]
fn with_thinking_each_turn_computes_only_what_is_new() {
    let home = Home::new();
    let model = thinking_model(&home);
    let (answers, figures) = talk(&home, &model, &["--think"]);
    assert_eq!(figures[0].cached, 0);
    for (turn, pair) in figures.windows(2).enumerate() {
        // The last token of an answer, which ends it, was chosen and never run.
        let known = pair[0].prompt + pair[0].generated - 1;
        assert_eq!(pair[1].cached, known, "turn {}: {figures:?}", turn + 2);
    }
    let (cold, figures) = talk(&home, &model, &["--think", "--no-cache"]);
    assert_eq!(cold, answers);
    assert!(figures.iter().all(|figures| figures.cached == 0), "{figures:?}");
}

#[test]
fn without_thinking_the_last_turn_is_computed_again_and_no_other() {
    let home = Home::new();
    let model = thinking_model(&home);
    let thought = thought(&home, &model);
    assert!(thought > 0);
    let (answers, figures) = talk(&home, &model, &["--no-think"]);
    assert_eq!(figures[0].cached, 0);
    for (turn, pair) in figures.windows(2).enumerate() {
        // The question ended in an empty thought then, and does not now. The common part is reused
        // if it is long enough.
        let same = pair[0].query - thought;
        let before = pair[0].prompt - pair[0].query;
        let known = before + if same >= 32 { same } else { 0 };
        assert_eq!(pair[1].cached, known, "turn {}: {figures:?}", turn + 2);
    }
    let longest = figures.iter().map(|figures| figures.query - thought).max().unwrap();
    assert!(longest >= 32, "one of the turns is long");
    let (cold, figures) = talk(&home, &model, &["--no-think", "--no-cache"]);
    assert_eq!(cold, answers);
    assert!(figures.iter().all(|figures| figures.cached == 0), "{figures:?}");
}

#[test]
fn a_chat_without_documents_or_system_prompt_reuses_its_first_turn() {
    let home = Home::new();
    let ran = home.feed(&["chat"], "Who is the ruler of Nusonix?\nAnd who is he?\nhm\n").ok();
    let figures = figures(&ran);
    for pair in figures.windows(2) {
        assert_eq!(pair[1].cached, pair[0].prompt + pair[0].generated - 1, "{figures:?}");
    }
}

#[test]
fn documents_belong_to_the_next_turn_and_stay() {
    let home = Home::new();
    home.chunk(&["add", "krogaste.txt", "--name", "ship"]).ok();
    let lines = "/chunks\n/context nusonix.txt\n/chunks\nWho is the ruler of Nusonix?\n\
        /use ship\nWho gives the orders on board the Krogaste?\n/chunks\n\
        /drop ship\n/drop ship\nIn which year was Nusonix founded?\n/chunks\n/verify\n";
    let ran = home.feed(&["chat", "--system", "Answer in one word."], lines).ok();
    assert_eq!(ran.stdout, "Vubegok\nProbrosur\n1376\n", "{}", ran.stderr);
    let says = |text: &str| ran.stderr.matches(text).count();
    assert_eq!(says("no answer yet, and no document"), 1, "{}", ran.stderr);
    assert_eq!(says("before the next message"), 2, "{}", ran.stderr);
    let listed = |when: &str, name: &str| {
        let is_listed = |line: &&str| line.starts_with(when) && line.ends_with(name);
        ran.stderr.lines().filter(is_listed).count()
    };
    assert_eq!((listed("waiting", "nusonix.txt"), listed("said", "nusonix.txt")), (1, 2));
    assert_eq!((listed("waiting", "ship"), listed("said", "ship")), (0, 1));
    assert_eq!(
        (says("ship is removed"), says("\"ship\" is not a document")),
        (1, 1),
        "{}",
        ran.stderr
    );
    assert_eq!(says("same answer, bit for bit"), 1, "{}", ran.stderr);
    assert_eq!(home.chunk(&["show", "ship", "--json"]).json()["uses"], 1);
    // The documents' rows are saved at the end. System prompt and first document have the same
    // positions here.
    let again =
        home.feed(&["chat", "--system", "Answer in one word."], "/context nusonix.txt\nhm\n");
    assert!(again.ok().stderr.contains(" 113 disk"), "the document is found");
}

#[test]
fn commands_that_cannot_be_carried_out_do_not_end_the_chat() {
    let home = Home::new();
    home.write("empty.txt", "");
    let lines = "/context absent\n/use absent\n/context empty.txt\n/verify\n/drop\n/system @absent\n\
        /context nusonix.txt\n/system Answer in one word.\n/chunks\n/context nusonix.txt\n\
        Who is the ruler of Nusonix?\n/clear\n/chunks\n";
    let ran = home.feed(&["chat"], lines).ok();
    assert_eq!(ran.stdout, "Vubegok\n", "{}", ran.stderr);
    for says in [
        "neither a file nor a chunk",
        "no chunk has the name \"absent\"",
        "empty.txt is empty",
        "no answer yet\n",
        "is not a document of this conversation",
        "absent: there is no such file",
        "no answer yet, and no document",
    ] {
        assert!(ran.stderr.contains(says), "`{says}` is missing: {}", ran.stderr);
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_and_its_documents_wait_on() {
    let home = Home::new();
    let long = "word ".repeat(400);
    let lines = format!("/context nusonix.txt\n{long}\nWho is the ruler of Nusonix?\n");
    let ran = home.feed(&["chat", "--ctx-size", "400"], &lines).ok();
    assert!(ran.stderr.contains("holds 400"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "Vubegok\n", "{}", ran.stderr);
}

/// What the user named when the chat began belongs to every conversation of it.
#[test]
fn documents_of_the_command_line_wait_again_after_a_new_start() {
    let home = Home::new();
    let question = "Who is the ruler of Nusonix?";
    let lines = format!(
        "{question}\n/clear\n/chunks\n/stats\n{question}\n/context krogaste.txt\n\
         /system Answer in one word.\n/chunks\n{question}\n/system\n"
    );
    let ran = home.feed(&["chat", "--context", "nusonix.txt", "-q"], &lines).ok();
    assert_eq!(ran.stdout.matches("Vubegok").count(), 3, "{}", ran.stderr);
    let says = |text: &str| ran.stderr.matches(text).count();
    let again = "started over; nusonix.txt: 113 tokens, before the next message";
    assert_eq!(says(again), 2, "{}", ran.stderr);
    assert_eq!(says("waiting "), 2, "{}", ran.stderr);
    assert_eq!((says("kind "), says("no answer yet")), (0, 1), "{}", ran.stderr);
    assert_eq!(says("/system needs a text, @FILE or a chunk"), 1, "{}", ran.stderr);
    let plain = home.feed(&["chat", "-q"], "/clear\n/system Be brief.\n").ok();
    assert_eq!(plain.stderr.matches("started over\n").count(), 2, "{}", plain.stderr);
}
