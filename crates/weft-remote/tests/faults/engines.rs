//! Engines on one store: the second finds what the first has computed, with the same bits, and a
//! store that lies, stalls or is gone changes no answer and delays no other lane.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_core::chunk::{ChunkId, Composition, Kind, Piece, Repair, Tier};
use weft_core::config::Config;
use weft_core::device::Limits as DeviceLimits;
use weft_core::engine::{Engine, Event, Finished, LaneId, RemoteTier, Request, Tiers, Token};
use weft_core::model::Model;
use weft_core::reference;
use weft_core::sampling::Sampling;
use weft_core::store::Store;
use weft_core::tokenizer::Tokenizer;
use weft_remote::{BreakerState, Limits, Remote, Trust};

use super::faulty::{Faulty, denied, full, reset, server_error};
use super::*;

fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-core/tests/prompts");
    let tokenizer = Tokenizer::from_file(file.join("tokenizer.json")).unwrap();
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "intermediate_size": 32, "vocab_size": {}, "max_position_embeddings": 1024,
            "rope_theta": 10000.0, "tie_word_embeddings": false}}"#,
        tokenizer.vocab_size()
    );
    Model::random(Config::from_json(json.as_bytes()).unwrap(), 3, Arc::new(tokenizer))
}

/// A machine with an empty disk.
struct Machine {
    engine: Engine,
    remote: Option<Arc<Remote>>,
    _disk: tempfile::TempDir,
}

impl Machine {
    fn new(remote: Option<Remote>) -> Self {
        let (model, disk) = (model(), tempfile::tempdir().unwrap());
        let limits = DeviceLimits { step_tokens: 64, step_outputs: 16, positions: 700, pages: 80 };
        let device = reference::open(&model.config, &*model.weights, limits).unwrap();
        let store = Store::open(disk.path(), 10_000_000).unwrap();
        let remote = remote.map(Arc::new);
        let tier = remote.clone().map(|remote| remote as Arc<dyn RemoteTier>);
        let tiers = Tiers { ram_bytes: 0, store: Some(store), remote: tier, ..Tiers::default() };
        let mut engine = Engine::with_tiers(&model, device, tiers);
        // Which is faster depends on the machine.
        engine.always_fetch(true);
        Self { engine, remote, _disk: disk }
    }

    fn on(store: &Arc<Faulty>, limits: Limits) -> Self {
        Self::new(Some(open_as(store, Trust::Key(KEY), limits)))
    }

    fn add(&mut self, prompt: &Composition) -> LaneId {
        let sampling = Sampling {
            temperature: 0.0,
            max_tokens: Some(6),
            logprobs: Some(4),
            ignore_eos: true,
            ..Sampling::default()
        };
        self.engine.add(Request::new(prompt.clone(), sampling)).unwrap()
    }

    /// Runs all lanes until one ends.
    fn finish(&mut self, lane: LaneId) -> (Vec<Token>, Finished) {
        let mut tokens = Vec::new();
        loop {
            for event in self.engine.step().unwrap() {
                match event {
                    Event::Token { lane: of, token, .. } if of == lane => tokens.push(token),
                    Event::Done { lane: of, finished } if of == lane => return (tokens, finished),
                    _ => {}
                }
            }
        }
    }

    fn ask(&mut self, prompt: &Composition) -> (Vec<Token>, Vec<Option<Tier>>) {
        let lane = self.add(prompt);
        let (said, finished) = self.finish(lane);
        (said, finished.report.pieces.iter().map(|piece| piece.source).collect())
    }

    fn remote(&self) -> &Remote {
        self.remote.as_ref().unwrap()
    }

    /// Files everything, and waits until the store has it.
    fn save(&mut self) {
        self.engine.save(false);
        assert_eq!(self.remote().flush(LONG), 0);
    }
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + seed * 31 + (i * i * seed) % 13) % 256).collect()
}

/// A system prompt, documents and a question. All but the last are chunks.
fn prompt(documents: &[u32]) -> Composition {
    let chunk = |kind, tokens: Vec<u32>| Piece {
        chunk: Some(ChunkId::of(kind, &tokens)),
        ..Piece::exact(kind, tokens)
    };
    let mut pieces = vec![chunk(Kind::System, tokens(20, 1))];
    pieces.extend(documents.iter().map(|n| chunk(Kind::Context, tokens(70, *n))));
    pieces.push(Piece::exact(Kind::Query, tokens(9, 1000)));
    Composition { pieces, repair: Repair::None }
}

fn cold(prompt: &Composition) -> Vec<Token> {
    Machine::new(None).ask(prompt).0
}

/// A store that another machine has filled.
fn filled(prompt: &Composition) -> Arc<Faulty> {
    let store = Faulty::new();
    let mut machine = Machine::on(&store, limits());
    machine.ask(prompt);
    machine.save();
    store
}

const REMOTE: Option<Tier> = Some(Tier::Remote);

#[test]
fn a_second_machine_finds_the_chunks_of_the_first_with_the_same_bits() {
    let bucket = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", bucket.path().display());
    let machine = || Machine::new(Some(Remote::open(&url, Trust::Key(KEY), limits()).unwrap()));
    let prompt = prompt(&[7, 8]);
    let mut first = machine();
    let (said, sources) = first.ask(&prompt);
    assert_eq!((&said, sources), (&cold(&prompt), vec![None; 4]));
    first.save();
    assert_eq!(first.remote().stats().stored, 3);
    let mut second = machine();
    let (again, sources) = second.ask(&prompt);
    assert_eq!((again, sources), (said, vec![REMOTE, REMOTE, REMOTE, None]));
    second.save();
    let stats = second.remote().stats();
    assert_eq!((stats.hits, stats.stored, stats.present), (3, 0, 0));
    assert_eq!(second.engine.cache_stats().disk.nodes, 3, "they are on its disk now");
    // Rows that were written behind answers are those of a chunk, like rows that were pushed.
    let chunk = prompt.pieces[1].chunk.unwrap();
    assert!(second.remote().has_rows(&chunk).unwrap());
}

#[test]
fn a_store_that_lies_changes_no_answer_and_is_mended() {
    type Lie = fn(usize, Vec<u8>) -> Vec<u8>;
    let lies: [Lie; 4] = [
        |n, mut bytes| {
            let at = n * 7919 % bytes.len();
            bytes[at] ^= 1 << (n % 8);
            bytes
        },
        |_, mut bytes| {
            bytes.pop();
            bytes
        },
        |_, bytes| vec![0; bytes.len()],
        |_, mut bytes| {
            bytes.push(b'x');
            bytes
        },
    ];
    let prompt = prompt(&[7, 8]);
    let said = cold(&prompt);
    for (n, lie) in lies.into_iter().cycle().take(12).enumerate() {
        let store = filled(&prompt);
        store.damage(move |_, bytes| Ok(lie(n, bytes)));
        let mut machine = Machine::on(&store, limits());
        let (again, sources) = machine.ask(&prompt);
        assert_eq!((&again, sources), (&said, vec![None; 4]));
        let stats = machine.remote().stats();
        assert_eq!((stats.hits, stats.misses), (0, 3));
        // What was damaged is written again.
        store.heal();
        machine.save();
        let (again, sources) = Machine::on(&store, limits()).ask(&prompt);
        assert_eq!((again, sources), (said.clone(), vec![REMOTE, REMOTE, REMOTE, None]));
    }
}

#[test]
fn a_store_that_fails_is_counted_and_changes_no_answer() {
    let prompt = prompt(&[7, 8]);
    let said = cold(&prompt);
    for error in [server_error as fn() -> _, reset, denied, full] {
        let store = filled(&prompt);
        *store.refuses_reads.lock().unwrap() = Some(error);
        *store.refuses_writes.lock().unwrap() = Some(error);
        let mut machine = Machine::on(&store, limits());
        assert_eq!(machine.ask(&prompt), (said.clone(), vec![None; 4]));
        machine.save();
        let stats = machine.remote().stats();
        assert_eq!((stats.misses, stats.read_breaker), (3, BreakerState::Open), "{stats:?}");
        let failed: u64 = stats.failed_writes.values().sum();
        assert_eq!((failed + stats.dropped, stats.stored), (3, 0), "{stats:?}");
        let mut warnings = machine.engine.take_warnings();
        warnings.retain(|warning| warning.contains("the remote store"));
        assert_eq!(warnings.len(), 2, "one of each kind: {warnings:?}");
    }
}

#[test]
fn a_store_that_stalls_delays_its_own_lane_alone() {
    let theirs = prompt(&[7, 8]);
    let store = filled(&theirs);
    let mut machine = Machine::on(&store, limits());
    store.is_slow.store(true, Ordering::SeqCst);
    let waiting = machine.add(&theirs);
    let mut ours = prompt(&[]);
    ours.pieces.remove(0);
    let running = machine.add(&ours);
    assert_eq!(machine.finish(running).0, cold(&ours));
    assert_eq!(machine.engine.running(), 1);
    store.gate.add_permits(1000);
    let (said, finished) = machine.finish(waiting);
    assert_eq!((said, finished.report.pieces[1].source), (cold(&theirs), REMOTE));
}

#[test]
fn a_store_that_is_gone_costs_one_timeout_and_then_nothing() {
    let prompts = [prompt(&[7, 8]), prompt(&[9]), prompt(&[10, 11])];
    let store = filled(&prompts[0]);
    let before = store.reads();
    store.is_slow.store(true, Ordering::SeqCst);
    let limits = Limits { fetch: Duration::from_millis(20), ..limits() };
    let mut machine = Machine::on(&store, limits);
    // Computed before the first timeout: the breaker pauses for seconds only.
    let expected = prompts.each_ref().map(cold);
    for (prompt, expected) in prompts.iter().zip(expected) {
        assert_eq!(machine.ask(prompt).0, expected);
    }
    // The three chunks of the first prompt are asked for at once, and no other.
    let stats = machine.remote().stats();
    let (timeouts, left_alone) = (stats.count("timeout"), stats.count("breaker_open"));
    assert!((1..=3).contains(&timeouts), "{stats:?}");
    assert_eq!(timeouts + left_alone, 6, "{stats:?}");
    assert!(store.reads() - before <= 3);
}
