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
    let sooner = stdout.lines().find_map(|line| line.strip_prefix("second question: ")).unwrap();
    let times: f64 = sooner.split(' ').next().unwrap().parse().unwrap();
    assert!(times > 1.5 && sooner.contains(" × sooner"), "{sooner}");
    let drafted = |line: &str| line.ends_with(" of them were drafted from the documents and");
    assert!(stdout.lines().any(|line| line.starts_with("quote: ")), "{stdout}");
    assert!(stdout.lines().any(drafted), "{stdout}");
    assert!(stdout.contains("\n  weft serve"), "{stdout}");
    assert!(stdout.lines().skip_while(|line| *line != "Go on with:").count() >= 5, "{stdout}");
}
