//! The parts of a leased rate: units that move between processes, each of which fills a bucket by its own clock.
//!
//! The bucket is the library's. In each state the law is checked of all that was taken and has not come back: in no span `t` more than
//! `burst + rate x t`, whatever the number of processes.

use crate::remote::client::share::{Share, UNITS};
use crate::remote::model::Fill;
use crate::search::exhaust;
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};

/// A token a microsecond comes, up to two.
const FILL: Fill = Fill {
    price: 1,
    gain: 1,
    brim: BURST,
};
const BURST: u64 = 2;
/// Units move by the half.
const PART: u64 = UNITS / 2;

/// How long tokens are lent, to be spent without a change of the bucket.
const LOAN: u64 = 2;

/// A space: processes that take, lend, return units, lose them, and give tokens back.
#[derive(Clone, Debug)]
struct World {
    processes: usize,
    ticks: u64,
    takes: usize,
}

/// What was taken at an instant, and what of it has not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Take {
    process: usize,
    at: u64,
    taken: u64,
    counts: u64,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    free: u64,
    parts: Vec<Share>,
    units: Vec<u64>,
    /// Of each process: the tokens lent, those that are left of them, and until when they can be spent.
    lent: Vec<Option<(u64, u64, u64)>>,
    taken: Vec<Take>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Receive(usize),
    Give(usize),
    Lapse(usize),
    Take(usize, u64),
    Refund(usize),
    Lend(usize),
    TakeLent(usize),
    TakeBack(usize),
}

impl State {
    fn numbers(&self) -> impl Iterator<Item = impl Hash + PartialEq> {
        self.parts.iter().map(Share::numbers)
    }

    /// What comes before each change of the bucket of `process`.
    fn take_back(&mut self, process: usize) {
        if let Some((lent, left, until)) = self.lent[process].take() {
            self.parts[process].spend_lent(lent - left, until);
        }
    }

    fn take(&mut self, process: usize, n: u64) {
        self.taken.push(Take {
            process,
            at: self.now,
            taken: n,
            counts: n,
        });
    }

    /// Whether a span holds too much.
    fn is_lawful(&self) -> bool {
        let spans = self
            .taken
            .iter()
            .flat_map(|first| self.taken.iter().map(move |last| (first.at, last.at)));
        spans.filter(|(first, last)| first <= last).all(|(first, last)| {
            let within = self.taken.iter().filter(|take| (first..=last).contains(&take.at));
            within.map(|take| take.counts).sum::<u64>() <= BURST + (last - first)
        })
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.now, self.free, &self.lent, &self.taken).hash(state);
        self.numbers().for_each(|numbers| numbers.hash(state));
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.now, self.free, &self.lent, &self.taken) == (other.now, other.free, &other.lent, &other.taken)
            && self.numbers().eq(other.numbers())
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut full = Share::new(FILL, 0);
        // One process has held all of it for long.
        full.receive(UNITS, 0);
        full.refund(BURST, BURST, 0, 0);
        let mut parts = vec![Share::new(FILL, 0); self.processes];
        parts[0] = full;
        let mut units = vec![0; self.processes];
        units[0] = UNITS;
        vec![State {
            now: 0,
            free: 0,
            parts,
            units,
            lent: vec![None; self.processes],
            taken: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        for process in 0..self.processes {
            if state.free > 0 {
                actions.push(Action::Receive(process));
            }
            if state.units[process] > 0 {
                actions.extend([Action::Give(process), Action::Lapse(process)]);
            }
            let has_takes = state.taken.len() < self.takes;
            if let Some((_, left, until)) = state.lent[process] {
                actions.push(Action::TakeBack(process));
                if has_takes && left > 0 && state.now < until {
                    actions.push(Action::TakeLent(process));
                }
                continue;
            }
            let there = state.parts[process].tokens(state.now);
            if has_takes && there > 0 {
                actions.push(Action::Lend(process));
            }
            let takes = if has_takes { there } else { 0 };
            actions.extend((1..=takes).map(|n| Action::Take(process, n)));
        }
        let back = (0..state.taken.len()).filter(|&take| state.taken[take].counts > 0);
        actions.extend(back.map(Action::Refund));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let now = next.now;
        match action {
            Action::Receive(process) | Action::Give(process) | Action::Lapse(process) => next.take_back(process),
            Action::Refund(take) => next.take_back(state.taken[take].process),
            _ => {}
        }
        match action {
            Action::Tick => next.now += 1,
            Action::Lend(process) => {
                // After an admission, so that the bucket is as of now.
                next.parts[process].take(0, now);
                let tokens = next.parts[process].tokens(now);
                next.lent[process] = Some((tokens, tokens, now + LOAN));
            }
            Action::TakeLent(process) => {
                let (_, left, _) = next.lent[process].as_mut()?;
                *left -= 1;
                next.take(process, 1);
            }
            Action::TakeBack(process) => next.take_back(process),
            Action::Receive(process) => {
                next.parts[process].receive(PART, now);
                next.units[process] += PART;
                next.free -= PART;
            }
            Action::Give(process) => {
                next.parts[process].give(PART, now);
                next.units[process] -= PART;
                next.free += PART;
            }
            Action::Lapse(process) => {
                next.parts[process].lapse(now);
                next.free += std::mem::take(&mut next.units[process]);
            }
            Action::Take(process, n) => {
                next.parts[process].take(n, now);
                next.take(process, n);
            }
            Action::Refund(take) => {
                let Take { process, at, taken, .. } = next.taken[take];
                next.parts[process].refund(taken, taken, at, now);
                next.taken[take].counts = 0;
            }
        }
        Some(next)
    }

    /// Units that come from nowhere make the space infinite: a few of them are enough.
    fn within_boundary(&self, state: &State) -> bool {
        state.parts.iter().all(|part| part.numbers().0 <= 2 * UNITS)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(
            "no span holds more than the burst and the refill",
            |_, state: &State| state.is_lawful(),
        )]
    }
}

#[test]
fn parts_of_a_rate_take_no_more_than_the_rate() {
    let world = World {
        processes: 2,
        ticks: 4,
        takes: 3,
    };
    exhaust("leased capacity, two processes", world, |_| None);
}

#[test]
#[ignore = "takes minutes"]
fn parts_of_three_processes_take_no_more_than_the_rate() {
    let world = World {
        processes: 3,
        ticks: 3,
        takes: 2,
    };
    exhaust("leased capacity, three processes", world, |_| None);
}
