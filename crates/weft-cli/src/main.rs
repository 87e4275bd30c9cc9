//! The command line: one match over commands. Answers go to stdout, everything else to stderr. Only
//! this crate prints.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod answer;
mod args;
mod bench;
mod commands;
mod context_report;
mod error;
mod input;
mod interrupt;
mod load;
mod models;
mod progress;
mod remote;
mod resident;
mod served;
mod session;
mod settings;
mod size;
mod sources;
mod terminal;
mod tiers;

use std::process::ExitCode;

use args::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    // The panic's own message goes to stderr first; the next line asks the user to report it.
    match std::panic::catch_unwind(|| settings::parse().and_then(run)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            terminal::error(&settings::with_place(error.to_string()));
            error.exit_code()
        }
        Err(_) => {
            eprintln!("weft: this is a fault in weft itself; please report it with the command");
            ExitCode::from(error::ENGINE_FAULT)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, CliError> {
    terminal::set_verbose(cli.verbose);
    let Some(command) = cli.command else {
        return commands::demo::run();
    };
    match command {
        Command::Ask(args) => commands::ask::run(*args),
        Command::Verify(args) => commands::verify::run(*args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Chunk(args) => commands::chunk::run(args.command),
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Ps(args) => commands::ps::run(&args),
        Command::Stop(args) => commands::stop::run(&args),
        Command::Embed(args) => commands::embed::run(*args),
        Command::Serve(args) => commands::serve::run(*args),
        Command::Show(args) => commands::show::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Rm(args) => commands::rm::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Config(args) => commands::config::run(args.command.as_ref()),
        Command::Bench(args) => bench::run(*args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }
}
