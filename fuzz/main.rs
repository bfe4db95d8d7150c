//! The corpora of the fuzz targets, and inputs that are made from them without feedback. See README.md.
#![cfg(not(tollgate_loom))]

// Both kinds of pools, as tests see them.
#[path = "../tests/it/pool"]
mod pool {
    #[allow(dead_code, unused_imports, reason = "tests use the rest")]
    pub(crate) mod kinds;
}
mod targets;

use std::path::Path;
use std::time::{Duration, Instant};
use targets::{TARGETS, Target};

const WORDS: [&str; 42] = [
    "[[leg]]\n",
    "name",
    "kind",
    "quota",
    "limit",
    "window",
    "when",
    "load_of",
    "at_once",
    "order",
    "priority",
    "above",
    "below",
    "over",
    "metric",
    "leg",
    "use",
    "rate",
    "latency",
    "refusals",
    "shadow",
    "true",
    "inherit",
    "reset",
    "per",
    "burst",
    "by interval",
    "zero",
    "unlimited",
    "365d",
    "1/ns",
    "18446744073709551615",
    "-1",
    "1e308",
    "0.0000001",
    "\"",
    "'",
    "{ ",
    " }",
    "[",
    "\n",
    "\u{e4}",
];

/// Xorshift: the same seed, the same inputs.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(8) {
            let (at, len) = (self.below(input.len() + 1), self.below(24));
            let end = (at + len).min(input.len());
            match self.below(6) {
                0 if at < input.len() => input[at] ^= 1 << self.below(7),
                1 => drop(input.drain(at..end)),
                2 => {
                    let piece = input[at..end].to_vec();
                    input.splice(at..at, piece);
                }
                3 => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len() + 1);
                    let piece = other[from..(from + 4 * len).min(other.len())].to_vec();
                    input.splice(at..end, piece);
                }
                4 => input.truncate(at),
                _ => {
                    let word = WORDS[self.below(WORDS.len())].bytes();
                    input.splice(at..end, word);
                }
            }
        }
        input
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 10, "the corpus of {name} is there");
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn number(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |text| text.parse().expect("a whole number"))
}

/// An input that fails is printed.
fn run(name: &str, target: Target, input: &[u8], from: impl Fn() -> String) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        println!("{name}, {}: {:?}", from(), String::from_utf8_lossy(input));
        println!("in bytes: {input:?}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn each_input_of_a_corpus_keeps_every_promise() {
    for (name, target) in TARGETS {
        for (number, input) in corpus(name).iter().enumerate() {
            run(name, target, input, || format!("file {number} of the corpus in order"));
        }
    }
}

#[test]
#[ignore = "as long as TOLLGATE_FUZZ_SECONDS says"]
fn any_input_made_from_a_corpus_keeps_every_promise() {
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        let seed = number("TOLLGATE_FUZZ_SEED", std::process::id().into()).max(1);
        let end = Instant::now() + Duration::from_secs(number("TOLLGATE_FUZZ_SECONDS", 2));
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut inputs = 0_u64;
        while Instant::now() < end {
            inputs += 1;
            run(name, target, &dice.input(&corpus), || {
                format!("seed {seed}, input {inputs}")
            });
        }
        println!("{name}: {inputs} inputs, seed {seed}");
    }
}
