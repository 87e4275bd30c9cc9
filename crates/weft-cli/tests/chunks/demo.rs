//! `weft` without a command: a demo of what chunks are for.

use crate::home::Home;

#[test]
fn alone_it_answers_twice_and_quotes_and_says_how_quickly_and_what_to_do_next() {
    let ran = Home::new().run(&[]).ok();
    let (stdout, stderr) = (ran.stdout, ran.stderr);
    let answers: Vec<&str> =
        stdout.lines().filter_map(|line| line.strip_prefix("answer   ")).collect();
    assert_eq!(answers[0], "The captain of the Krogaste is Probrosur.", "{stdout}");
    assert!(answers.len() == 3 && answers[1].contains("Melubo"), "{stdout}");
    let nusonix = include_str!("../../../../assets/demo/nusonix.txt").trim_end();
    assert!(stdout.contains(&format!("answer   {nusonix}\n")), "{stdout}");
    assert!(stderr.lines().any(|line| line.contains("cached: ")), "{stderr}");
    // A busy machine may slow a demo's second question down, but hardly that of four demos.
    let again = || Home::new().run(&[]).ok().stdout;
    assert!(is_sooner(&stdout) || (0..3).any(|_| is_sooner(&again())), "{stdout}");
    let drafted = |line: &str| line.ends_with(" of them were drafted from the documents and");
    assert!(stdout.lines().any(|line| line.starts_with("quote: ")), "{stdout}");
    assert!(stdout.lines().any(drafted), "{stdout}");
    assert!(stdout.contains("\n  weft serve"), "{stdout}");
    assert!(stdout.lines().skip_while(|line| *line != "Go on with:").count() >= 5, "{stdout}");
}

/// Whether the second question's first token came sooner than the first question's, by the demo.
fn is_sooner(stdout: &str) -> bool {
    let line = stdout.lines().find_map(|line| line.strip_prefix("second question: ")).unwrap();
    let (times, _) = line.split_once(" × sooner").unwrap();
    times.parse::<f64>().unwrap() > 1.5
}
