//! Proposes limits: the smallest that meet a stated share of refusals and a stated wait, on one trace.
//!
//! First each limit alone, with all others out of the way: less than that is never enough. Then all of them raised from
//! there by equally many steps, as few as meet the aim together. Then each is lowered as far as the others allow, in turn,
//! until none can be lowered any more.
//!
//! What is proposed has been run, and meets the aim; and with any one of the limits a step lower, and the others as they
//! are, it has been run too, and misses it. Another combination may be smaller in one limit and larger in another. Steps
//! are of two digits.

use super::error::LabError;
use super::knob::{Knob, knobs};
use super::replay::{Bench, Replay};
use super::summary::Summary;
use super::trace::Trace;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;
use tollgate_config::PolicySpec;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// At most this share of the requests is refused.
    pub refused: f64,
    /// Of those admitted, 99 of a hundred wait no longer.
    pub wait: Option<Duration>,
}

impl Aim {
    /// Reads `refused=2%` and `wait=1s`.
    pub fn parse(texts: &[String]) -> Result<Self, LabError> {
        let mut refused = None;
        let mut wait = None;
        for text in texts {
            let wrong = |what: &str| LabError::new(format!("--propose: `{text}` {what}"));
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| wrong("is none of refused=2% and wait=1s"))?;
            match name.trim() {
                "refused" => {
                    let (number, scale) = value.strip_suffix('%').map_or((value, 1.0), |number| (number, 100.0));
                    let share = number.trim().parse::<f64>().ok().map(|number| number / scale);
                    let share = share.filter(|share| (0.0..1.0).contains(share));
                    refused = Some(share.ok_or_else(|| wrong("is no share from 0% to below 100%"))?);
                }
                "wait" => {
                    let time = humantime::parse_duration(value.trim());
                    wait = Some(time.map_err(|error| wrong(&format!("is no time: {error}")))?);
                }
                _ => return Err(wrong("is none of refused=2% and wait=1s")),
            }
        }
        let refused = refused.ok_or_else(|| LabError::new("--propose: say what may be refused, as in refused=2%"))?;
        Ok(Self { refused, wait })
    }

    /// Whether a run meets it.
    pub fn met(&self, replay: &Replay) -> bool {
        let summary = Summary::of(replay);
        let refused = summary.refused() as f64 <= self.refused * summary.arrived as f64;
        let wait = self.wait.is_none_or(|most| summary.waits[2] <= most);
        refused && wait
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} % refused", self.refused * 100.0)?;
        match self.wait {
            Some(wait) => write!(f, ", and a wait p99 of at most {}", humantime::format_duration(wait)),
            None => Ok(()),
        }
    }
}

/// What a search found.
pub struct Proposal {
    pub knobs: Vec<Knob>,
    /// The step of each limit that is enough when nothing else limits.
    pub alone: Vec<usize>,
    pub proposed: Vec<usize>,
    pub spec: PolicySpec,
    /// How many runs it took.
    pub runs: usize,
}

struct Search<'a> {
    bench: Bench<'a>,
    spec: &'a PolicySpec,
    knobs: Vec<Knob>,
    aim: Aim,
    most_refused: usize,
    known: HashMap<Vec<usize>, bool>,
    progress: &'a dyn Fn(),
}

/// Searches the limits of `spec` on `trace`. `progress` is called once per run.
pub fn propose(spec: &PolicySpec, trace: &Trace, aim: Aim, progress: &dyn Fn()) -> Result<Option<Proposal>, LabError> {
    let mut search = Search {
        bench: Bench::new(spec, trace)?,
        spec,
        knobs: knobs(spec, trace),
        aim,
        most_refused: (aim.refused * trace.requests.len() as f64) as usize,
        known: HashMap::new(),
        progress,
    };
    if search.knobs.is_empty() {
        return Err(LabError::new(
            "no leg of the policy has a number that could be proposed",
        ));
    }
    let open: Vec<usize> = search.knobs.iter().map(|knob| knob.most).collect();
    if !search.meets(&open)? {
        return Ok(None);
    }
    let mut alone = open.clone();
    for place in 0..open.len() {
        let mut steps = open.clone();
        search.lower(&mut steps, place)?;
        alone[place] = steps[place];
    }
    let raised = |by: usize| -> Vec<usize> {
        alone
            .iter()
            .zip(&open)
            .map(|(&alone, &open)| (alone + by).min(open))
            .collect()
    };
    let furthest = alone
        .iter()
        .zip(&open)
        .map(|(alone, open)| open - alone)
        .max()
        .unwrap_or(0);
    let (mut enough, mut too_few) = (furthest, None::<usize>);
    let mut next = 0;
    // By doubling first: the answer is mostly near, and runs that refuse much are cheap.
    while next < enough && too_few.is_none_or(|too_few| too_few + 1 < enough) {
        if search.meets(&raised(next))? {
            enough = next;
        } else {
            too_few = Some(next);
        }
        let above = too_few.map_or(0, |too_few| too_few + 1);
        next = (2 * next.max(1)).min((above + enough) / 2).max(above);
    }
    let mut steps = raised(enough);
    // More room need not mean fewer refusals: whatever is proposed has met the aim itself.
    if !search.meets(&steps)? {
        steps = open;
    }
    loop {
        let before = steps.clone();
        for place in 0..steps.len() {
            search.lower(&mut steps, place)?;
        }
        if steps == before {
            break;
        }
    }
    Ok(Some(Proposal {
        spec: search.at(&steps),
        alone,
        proposed: steps,
        runs: search.known.len(),
        knobs: search.knobs,
    }))
}

impl Search<'_> {
    fn at(&self, steps: &[usize]) -> PolicySpec {
        let mut spec = self.spec.clone();
        for (knob, &step) in self.knobs.iter().zip(steps) {
            if let Some(kind) = knob.at(step) {
                spec.legs[knob.leg].kind = kind;
            }
        }
        spec
    }

    fn meets(&mut self, steps: &[usize]) -> Result<bool, LabError> {
        if let Some(&known) = self.known.get(steps) {
            return Ok(known);
        }
        let replay = self.bench.run_until(&self.at(steps), self.most_refused)?;
        let met = replay.is_some_and(|replay| self.aim.met(&replay));
        (self.progress)();
        self.known.insert(steps.to_vec(), met);
        Ok(met)
    }

    /// Lowers one limit, which meets the aim where it stands, until a step less does not.
    fn lower(&mut self, steps: &mut [usize], place: usize) -> Result<(), LabError> {
        let mut stride = 1;
        // Downwards in growing strides while it meets the aim, then back in shrinking ones.
        let mut fails: Option<usize> = None;
        loop {
            let high = steps[place];
            let floor = fails.map_or(0, |fails| fails + 1);
            if high == floor {
                return Ok(());
            }
            let next = match fails {
                None => high.saturating_sub(stride),
                Some(fails) => fails + (high - fails) / 2,
            };
            steps[place] = next;
            if self.meets(steps)? {
                stride *= 2;
            } else {
                steps[place] = high;
                fails = Some(next);
            }
        }
    }
}
