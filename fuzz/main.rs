//! Fuzz targets for what is read from text. See README.md.
#![cfg(not(tollgate_loom))]

use std::path::Path;
use std::time::{Duration, Instant};
use tollgate::policy::file::Format;
use tollgate::policy::spec::{PolicySetSpec, PolicySpec};
use tollgate::{Ask, LimiterExt, ManualClock, Quota, TokenBucket};

/// What is read is written as it was meant; what is not is said to be wrong at a place within the text.
fn quota(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match text.parse::<Quota>() {
        Ok(quota) => {
            assert_eq!(quota.to_string().parse(), Ok(quota), "`{text}` is written as `{quota}`");
            let clock = ManualClock::new();
            let bucket = TokenBucket::new(quota).on(&clock);
            assert_eq!(bucket.available(), quota.burst_size(), "`{text}`");
            let _ = bucket.try_acquire(1);
            clock.advance(Duration::from_secs(1));
            assert!(bucket.available() <= quota.burst_size());
        }
        Err(tollgate::QuotaError::Text { column, .. }) => assert!((1..=text.chars().count() + 1).contains(&column)),
        Err(other) => assert!(!other.to_string().is_empty()),
    }
}

/// What is read can be built, asked, and put in force beside another; what is not is said to be wrong at a place within
/// the text.
fn policy(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for format in [Format::Toml, Format::Json] {
        if let Ok(spec) = PolicySetSpec::parse(text, format) {
            let set = spec.build(&ManualClock::new()).unwrap();
            set.apply(spec).unwrap();
        }
        match PolicySpec::parse(text, format) {
            Ok(spec) => {
                let clock = ManualClock::new();
                let policy = match spec.build(&clock) {
                    Ok(policy) => policy,
                    Err(error) => panic!("{error}\n{text}"),
                };
                let held = policy.try_admit(Ask::one()).ok();
                let _ = policy.explain(Ask::one());
                let only = PolicySpec::parse("[[leg]]\nname='a'\nkind='semaphore'\nlimit=1", Format::Toml);
                for version in [only.unwrap(), spec] {
                    policy.apply(version).unwrap();
                }
                drop(held);
            }
            Err(error) => {
                let (line, column) = (error.line().unwrap(), error.column().unwrap());
                let lines: Vec<&str> = text.split('\n').collect();
                assert!((1..=lines.len()).contains(&line), "{error}\n{text}");
                let width = lines[line - 1].chars().count();
                assert!((1..=width + 1).contains(&column), "{error}\n{text}");
            }
        }
    }
}

const WORDS: [&str; 40] = [
    "[[leg]]\n",
    "name",
    "kind",
    "quota",
    "limit",
    "window",
    "when",
    "peak",
    "steps",
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
    assert!(files.len() > 10, "the corpus is there");
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn number(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |text| text.parse().expect("a whole number"))
}

fn fuzz(name: &str, target: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let corpus = corpus(name);
    let seed = number("TOLLGATE_FUZZ_SEED", std::process::id().into()).max(1);
    let end = Instant::now() + Duration::from_secs(number("TOLLGATE_FUZZ_SECONDS", 2));
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut inputs = 0_u64;
    while Instant::now() < end {
        let input = dice.input(&corpus);
        inputs += 1;
        if let Err(panic) = std::panic::catch_unwind(|| target(&input)) {
            println!("seed {seed}, input {inputs}: {:?}", String::from_utf8_lossy(&input));
            std::panic::resume_unwind(panic);
        }
    }
    println!("{name}: {inputs} inputs, seed {seed}");
}

#[test]
fn the_corpus_of_quotas_holds() {
    corpus("quota").iter().for_each(|input| quota(input));
}

#[test]
fn the_corpus_of_policies_holds() {
    corpus("policy").iter().for_each(|input| policy(input));
}

#[test]
#[ignore = "as long as TOLLGATE_FUZZ_SECONDS says"]
fn quotas_in_any_text() {
    fuzz("quota", quota);
}

#[test]
#[ignore = "as long as TOLLGATE_FUZZ_SECONDS says"]
fn policies_in_any_text() {
    fuzz("policy", policy);
}
