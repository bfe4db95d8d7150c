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

/// A space: processes that take, return units, lose them, and give tokens back.
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
}

impl State {
    fn words(&self) -> (u64, u64, Vec<String>, &[Take]) {
        // All of it is whole numbers, which are printed as they are.
        let parts = self.parts.iter().map(|part| format!("{part:?}")).collect();
        (self.now, self.free, parts, &self.taken)
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
        self.words().hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
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
            let there = state.parts[process].tokens(state.now);
            let takes = if state.taken.len() < self.takes { there } else { 0 };
            actions.extend((1..=takes).map(|n| Action::Take(process, n)));
        }
        let back = (0..state.taken.len()).filter(|&take| state.taken[take].counts > 0);
        actions.extend(back.map(Action::Refund));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let now = next.now;
        match action {
            Action::Tick => next.now += 1,
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
                next.taken.push(Take {
                    process,
                    at: now,
                    taken: n,
                    counts: n,
                });
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
        state.parts.iter().all(|part| part.units_held() <= 2 * UNITS)
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
