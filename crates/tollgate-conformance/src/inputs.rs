//! Inputs for the laws of pure machines.
//!
//! A law is one function. It draws its inputs, drives a machine by them, and asserts after each step. [`holds`] runs it twice: with
//! random inputs of the whole domain, corners among them, and with each combination of inputs of a reduced domain. The variable
//! `TOLLGATE_LAWS=deep` makes both longer.
//!
//! ```
//! use tollgate_conformance::inputs::holds;
//!
//! holds([2, 3], |inputs| {
//!     let mut sum = 0;
//!     while inputs.goes_on() {
//!         sum += inputs.below(10);
//!     }
//!     assert!(sum <= 9 * 120);
//! });
//! ```

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The inputs of one run of a law.
#[derive(Debug)]
pub struct Inputs {
    source: Source,
    steps: usize,
}

#[derive(Debug)]
enum Source {
    /// Random words, each used once.
    Random(std::vec::IntoIter<u64>),
    /// The digits of a number, each with its base: the combination. Those that are not drawn yet are zero.
    Each { digits: Vec<(u64, u64)>, drawn: usize },
}

impl Inputs {
    /// True if the law takes another step.
    pub fn goes_on(&mut self) -> bool {
        if let Source::Random(words) = &self.source {
            return words.len() > 0;
        }
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// A number below `n`, of both domains.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number(n - 1, n - 1)
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A number up to `most`; of the reduced domain up to `reduced`.
    pub fn number(&mut self, most: u64, reduced: u64) -> u64 {
        match &mut self.source {
            Source::Random(words) => match words.next().unwrap_or(0) {
                word if word <= most => word,
                // The last ones are as likely as the first.
                word if u64::MAX - word <= most.min(8) => most - (u64::MAX - word),
                word => word % (most + 1),
            },
            Source::Each { digits, drawn } => {
                if *drawn == digits.len() {
                    digits.push((0, reduced.min(most) + 1));
                }
                *drawn += 1;
                digits[*drawn - 1].0
            }
        }
    }

    /// The next combination; false after the last.
    fn advance(&mut self, steps: usize) -> bool {
        self.steps = steps + 1;
        let Source::Each { digits, drawn } = &mut self.source else {
            return false;
        };
        *drawn = 0;
        while let Some((digit, base)) = digits.last_mut() {
            *digit += 1;
            if digit < base {
                return true;
            }
            digits.pop();
        }
        false
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..12,
        3 => any::<u64>(),
        2 => (0u32..64, 0u64..3).prop_map(|(bit, off)| (1u64 << bit).wrapping_add(off).wrapping_sub(1)),
        1 => (0u64..4).prop_map(|below| u64::MAX - below),
    ]
}

/// Runs `law` with random inputs, and with all sequences of `[short, deep]` steps of the reduced domain.
///
/// # Panics
/// When the law does, with the inputs.
#[track_caller]
pub fn holds([short, deep]: [usize; 2], law: impl Fn(&mut Inputs)) {
    let is_deep = std::env::var("TOLLGATE_LAWS").is_ok_and(|laws| laws == "deep");
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(if is_deep { 20_000 } else { 400 }),
        failure_persistence: None,
        ..Config::default()
    };
    // The same cases each time, so that a gate is no lottery; others in each deep run.
    let runner = match is_deep {
        true => TestRunner::new(config),
        false => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let found = { runner }.run(&vec(word(), 0..120), |words| {
        law(&mut Inputs {
            source: Source::Random(words.into_iter()),
            steps: 0,
        });
        Ok(())
    });
    if let Err(found) = found {
        panic!("{found}");
    }
    let steps = if is_deep { deep } else { short };
    let mut inputs = Inputs {
        source: Source::Each {
            digits: Vec::new(),
            drawn: 0,
        },
        steps: steps + 1,
    };
    let mut runs = 1u64;
    loop {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| law(&mut inputs))) {
            eprintln!("with {inputs:?}");
            resume_unwind(panic);
        }
        if !inputs.advance(steps) {
            break;
        }
        runs += 1;
    }
    println!("{runs} combinations of {steps} steps");
}
