//! Turns the results of requests into series: counts per step of time, levels, and the use of each budget.

use super::plot::{Plot, Series, Shape};
use super::{Group, ticks};

/// The result of one request, in nanoseconds since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub arrived: u64,
    /// When it was admitted or refused.
    pub ended: u64,
    /// When its work was done; nothing when it was refused.
    pub finished: Option<u64>,
    /// The leg that refused it.
    pub refused_by: Option<String>,
    /// The charge for each cost at first, and in the end.
    pub units: Vec<[u64; 2]>,
}

/// A leg, as far as it is drawn.
#[derive(Clone, Debug)]
pub struct Leg {
    pub name: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Units per second, of the cost of this number; of calls without one.
    Rate {
        per_second: f64,
        cost: Option<usize>,
    },
    /// Units at once.
    Slots {
        limit: f64,
    },
    Other,
}

/// One run to be drawn.
pub struct Run<'a> {
    pub caption: String,
    pub legs: &'a [Leg],
    pub events: &'a [Event],
}

/// Steps of equal length that cover all runs.
struct Steps {
    nanos: u64,
    count: usize,
}

impl Steps {
    fn over(runs: &[Run<'_>]) -> Self {
        let ends = runs
            .iter()
            .flat_map(|run| run.events)
            .map(|event| event.finished.unwrap_or(event.ended));
        let end = ends.max().unwrap_or(0);
        let seconds = ticks::length(end as f64 / 1e9, 300);
        let nanos = ((seconds * 1e9) as u64).max(1);
        Self {
            nanos,
            count: (end / nanos) as usize + 1,
        }
    }

    fn seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    fn of(&self, at: u64) -> usize {
        ((at / self.nanos) as usize).min(self.count - 1)
    }

    /// The sum of each step.
    fn sums(&self, points: impl Iterator<Item = (u64, f64)>) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        points.for_each(|(at, units)| sums[self.of(at)] += units);
        sums
    }

    /// The highest level in each step, of spans that begin and end at these instants. At one instant, ends go first.
    fn peaks(&self, spans: impl Iterator<Item = (u64, u64)>) -> Vec<f64> {
        let mut changes: Vec<(u64, i64)> = spans.flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
        changes.sort_unstable();
        let mut peaks = vec![0.0; self.count];
        let (mut level, mut last) = (0i64, 0);
        for (at, change) in changes {
            let step = self.of(at);
            peaks[last + 1..=step.max(last)].fill(level as f64);
            level += change;
            peaks[step] = f64::max(peaks[step], level as f64);
            last = step;
        }
        peaks
    }
}

fn admitted(event: &&Event) -> bool {
    event.refused_by.is_none()
}

/// The highest number in flight, and the highest number waiting.
pub fn highest(events: &[Event]) -> (u64, u64) {
    let all = Steps {
        nanos: u64::MAX,
        count: 1,
    };
    (all.peaks(work(events))[0] as u64, all.peaks(waits(events))[0] as u64)
}

fn work(events: &[Event]) -> impl Iterator<Item = (u64, u64)> + '_ {
    events.iter().filter_map(|event| Some((event.ended, event.finished?)))
}

fn waits(events: &[Event]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let waited = |event: &&Event| event.ended > event.arrived;
    events.iter().filter(waited).map(|event| (event.arrived, event.ended))
}

/// The names of all that refused, in the order of the legs, others after them.
pub fn refusers(runs: &[Run<'_>]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    let legs = runs.iter().flat_map(|run| run.legs).map(|leg| leg.name.as_str());
    let mut others: Vec<&str> = runs
        .iter()
        .flat_map(|run| run.events)
        .filter_map(|event| event.refused_by.as_deref())
        .collect();
    others.sort_unstable();
    for name in legs.chain(others.iter().copied()) {
        if !names.contains(&name) && others.binary_search(&name).is_ok() {
            names.push(name);
        }
    }
    names.into_iter().map(Into::into).collect()
}

/// One colour for each name of a leg, in all plots of a page.
struct Tones<'a>(Vec<&'a str>);

impl<'a> Tones<'a> {
    fn of(runs: &'a [Run<'_>]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for leg in runs.iter().flat_map(|run| run.legs) {
            if !names.contains(&leg.name.as_str()) {
                names.push(&leg.name);
            }
        }
        Self(names)
    }

    /// The first is for what is no leg.
    fn tone(&self, name: &str) -> usize {
        self.0
            .iter()
            .position(|known| *known == name)
            .map_or(0, |place| place % 7 + 1)
    }
}

/// The content of one plot: series, and limits by name.
type Drawn = (Vec<Series>, Vec<(String, f64)>);

/// The plots of these runs, all over the same time.
pub fn groups(runs: &[Run<'_>]) -> Vec<Group> {
    let steps = Steps::over(runs);
    let each = ticks::instant(steps.seconds());
    let refusers = refusers(runs);
    let tones = Tones::of(runs);
    let group = |title: &str, about: String, draw: &dyn Fn(&Run<'_>) -> Drawn| Group {
        title: title.into(),
        about,
        plots: runs
            .iter()
            .map(|run| {
                let (series, limits) = draw(run);
                Plot {
                    caption: run.caption.clone(),
                    step: steps.seconds(),
                    series,
                    limits,
                }
            })
            .collect(),
    };
    vec![
        group(
            "Arrivals and admissions",
            format!("Requests per {each}, each counted when it arrived or was admitted."),
            &|run| (traffic(&steps, run), Vec::new()),
        ),
        group(
            "Refused, by leg",
            format!("Requests per {each}, stacked, counted when they were refused."),
            &|run| (refused(&steps, run, &refusers, &tones), Vec::new()),
        ),
        group(
            "Waiting",
            format!("The most that waited at once, in each {each}."),
            &|run| (vec![area("waiting", steps.peaks(waits(run.events)), 4)], Vec::new()),
        ),
        group(
            "In flight",
            format!("The most that were at work at once, in each {each}, against the limits."),
            &|run| (vec![area("in flight", steps.peaks(work(run.events)), 3)], slots(run)),
        ),
        group(
            "Use of the budgets",
            format!(
                "What was charged in each {each}, less what came back, in per cent of what flows in. More than 100 is \
                 paid from what was saved up; less than 0 is drawn as 0."
            ),
            &|run| (budgets(&steps, run, &tones), vec![("all that flows in".into(), 100.0)]),
        ),
    ]
}

fn area(name: &str, values: Vec<f64>, tone: usize) -> Series {
    Series {
        name: name.into(),
        values,
        shape: Shape::Area,
        tone,
    }
}

fn traffic(steps: &Steps, run: &Run<'_>) -> Vec<Series> {
    let arrived = steps.sums(run.events.iter().map(|event| (event.arrived, 1.0)));
    let started = steps.sums(run.events.iter().filter(admitted).map(|event| (event.ended, 1.0)));
    vec![
        area("arrived", arrived, 0),
        Series {
            name: "admitted".into(),
            values: started,
            shape: Shape::Line,
            tone: 1,
        },
    ]
}

fn refused(steps: &Steps, run: &Run<'_>, refusers: &[String], tones: &Tones<'_>) -> Vec<Series> {
    let by = |name: &String| {
        let theirs = run
            .events
            .iter()
            .filter(|event| event.refused_by.as_ref() == Some(name));
        steps.sums(theirs.map(|event| (event.ended, 1.0)))
    };
    let series = refusers.iter().map(|name| Series {
        name: name.clone(),
        values: by(name),
        shape: Shape::Stacked,
        tone: tones.tone(name),
    });
    series.collect()
}

fn slots(run: &Run<'_>) -> Vec<(String, f64)> {
    let limits = run.legs.iter().filter_map(|leg| match leg.kind {
        Kind::Slots { limit } => Some((leg.name.clone(), limit)),
        _ => None,
    });
    limits.collect()
}

fn budgets(steps: &Steps, run: &Run<'_>, tones: &Tones<'_>) -> Vec<Series> {
    let mut series = Vec::new();
    for leg in run.legs {
        let Kind::Rate { per_second, cost } = leg.kind else {
            continue;
        };
        let mut used = steps.sums(run.events.iter().filter(admitted).flat_map(|event| {
            let [charged, real] = cost.map_or([1, 1], |cost| event.units[cost]).map(|units| units as f64);
            [
                (event.ended, charged),
                (event.finished.unwrap_or(event.ended), real - charged),
            ]
        }));
        let budget = per_second * steps.seconds();
        for units in &mut used {
            *units = if budget > 0.0 {
                (*units * 100.0 / budget).max(0.0)
            } else {
                0.0
            };
        }
        series.push(Series {
            name: leg.name.clone(),
            values: used,
            shape: Shape::Line,
            tone: tones.tone(&leg.name),
        });
    }
    series
}
