//! Two hours of real requests to language models through half of their tokens: what is refused, stopped and used, by what is reserved.
//! Twice: a budget of output tokens for each minute, and a bucket of input and output tokens with the burst of a minute.
//!
//! ```sh
//! cargo run --release -p tollgate-budget --example traces          # the table
//! cargo run --release -p tollgate-budget --example traces -- docs  # the files in `docs` as well
//! ```
//! In virtual time: the same numbers each time.

use flate2::read::GzDecoder;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Leg, LimiterExt, ManualClock, Permit, Quota, TokenBucket};
use tollgate_budget::{Account, Budgets, Estimates, Limit, Meter, OUTPUT, Period, Rule};

/// A stream produces a token in this time, and reports them in parts.
const TOKEN: Duration = Duration::from_millis(20);
const PART: u64 = 16;
/// What a request may produce at most, by its `max_tokens`.
const MAX_TOKENS: u64 = 4_096;

/// The time to the next part of a stream that has this many tokens left.
fn time_of(left: u64) -> Duration {
    TOKEN * left.min(PART) as u32
}

/// Streams by the instant of their next part.
type Due = BinaryHeap<Reverse<(Duration, usize)>>;

struct Request {
    /// Since the first one.
    at: Duration,
    /// The tokens of its prompt, and of its answer.
    input: u64,
    output: u64,
}

const TOKENS: Cost = Cost::new("tokens");

/// What requests take their tokens from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// Output tokens for each minute.
    Minute,
    /// Input and output tokens, which refill all the time.
    Bucket,
}

enum Gate {
    Minute(Account),
    Bucket(Arc<Leg<TokenBucket>>),
}

/// An admitted request.
enum Running {
    Metered(Meter),
    Permitted {
        permit: Permit<Arc<Leg<TokenBucket>>>,
        /// The tokens of the permit, those that were taken beyond them, and those that were used.
        reserved: u64,
        beyond: u64,
        used: u64,
    },
}

impl Gate {
    fn new(source: Source, amount: u64, clock: &ManualClock) -> Result<Self, Box<dyn Error>> {
        Ok(match source {
            Source::Minute => {
                let rule = Rule::new("all").limit(Limit::cost(OUTPUT, amount, Period::Minute));
                Self::Minute(Budgets::builder().rule(rule).on(clock).build()?.account(&[]))
            }
            Source::Bucket => {
                let bucket = TokenBucket::new(Quota::per_minute(amount).burst(amount)).on(clock);
                Self::Bucket(Arc::new(bucket.per(TOKENS)))
            }
        })
    }

    fn reserve(&self, input: u64, output: u64) -> Option<Running> {
        match self {
            Self::Minute(account) => {
                let meter = account.reserve(Ask::one().cost(OUTPUT, output));
                meter.ok().map(Running::Metered)
            }
            Self::Bucket(bucket) => {
                let reserved = input + output;
                let permit = bucket.try_admit_owned(Ask::one().cost(TOKENS, reserved)).ok()?;
                Some(Running::Permitted {
                    permit,
                    reserved,
                    beyond: 0,
                    used: input,
                })
            }
        }
    }
}

impl Running {
    /// Charges a part of the answer. False when the stream is to stop.
    fn extend(&mut self, part: u64) -> bool {
        match self {
            Self::Metered(meter) => meter.extend(OUTPUT, part).is_ok(),
            Self::Permitted {
                permit,
                reserved,
                beyond,
                used,
            } => {
                *used += part;
                let missing = used.saturating_sub(*reserved + *beyond);
                let more = Ask::one().cost(TOKENS, missing);
                let admitted = missing == 0 || permit.limiter().try_admit(more).is_ok();
                *beyond += if admitted { missing } else { 0 };
                admitted
            }
        }
    }

    /// Ends the request. What it has not used comes back.
    fn end(self) -> Result<(), Box<dyn Error>> {
        if let Self::Permitted {
            mut permit,
            beyond,
            used,
            ..
        } = self
        {
            permit.settle(TOKENS, used - beyond)?;
        }
        Ok(())
    }
}

fn read(name: &str) -> Result<Vec<Request>, Box<dyn Error>> {
    let path = format!("examples/data/azure_llm_2023_{name}.csv.gz");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
    let mut requests: Vec<Request> = Vec::new();
    let mut first = None;
    for line in text.lines().skip(1).filter(|line| !line.trim().is_empty()) {
        let mut fields = line.trim().split(',');
        let mut field = || fields.next().ok_or(line);
        let (at, input, output) = (field()?, field()?, field()?);
        // Of one day: `2023-11-16 18:15:46.6805900`.
        let mut seconds = 0.0;
        for part in at.split(' ').nth(1).ok_or(line)?.split(':') {
            seconds = seconds * 60.0 + part.parse::<f64>()?;
        }
        let first = *first.get_or_insert(seconds);
        requests.push(Request {
            at: Duration::from_secs_f64(seconds - first),
            input: input.parse()?,
            output: output.parse()?,
        });
    }
    Ok(requests)
}

#[derive(Clone, Copy, PartialEq)]
enum Reserve {
    Fixed(u64),
    /// This quantile of the answers so far.
    Learned(f64),
    /// The true cost, which no one knows.
    Clairvoyant,
}

const RESERVES: [(&str, &str, Reserve); 5] = [
    ("4,096", "#c0392b", Reserve::Fixed(4_096)),
    ("1,024", "#e08e0b", Reserve::Fixed(1_024)),
    ("learned 0.99", "#2471a3", Reserve::Learned(0.99)),
    ("learned 0.95", "#1e8449", Reserve::Learned(0.95)),
    ("clairvoyant", "#555555", Reserve::Clairvoyant),
];

/// Parts of all requests, and of the budget.
struct Outcome {
    refused: f64,
    aborted: f64,
    used: f64,
}

/// Runs all requests through `share` of their tokens per minute.
fn run(requests: &[Request], source: Source, reserve: Reserve, share: f64) -> Result<Outcome, Box<dyn Error>> {
    let clock = ManualClock::new();
    let counted = |request: &Request| match source {
        Source::Minute => request.output,
        Source::Bucket => request.input + request.output,
    };
    let tokens: u64 = requests.iter().map(counted).sum();
    let minutes = requests.last().ok_or("no request")?.at.as_secs_f64() / 60.0;
    let amount = (tokens as f64 * share / minutes) as u64;
    let gate = Gate::new(source, amount, &clock)?;
    let quantile = if let Reserve::Learned(quantile) = reserve {
        quantile
    } else {
        0.5
    };
    let estimates = Estimates::builder(quantile).build()?;
    let mut due = Due::new();
    let mut streams: Vec<Option<(Running, u64)>> = Vec::new();
    let (mut refused, mut aborted, mut used) = (0u32, 0u32, 0u64);
    let (mut now, mut used_input) = (Duration::ZERO, 0u64);
    // The parts up to an instant.
    let mut step = |until: Duration, streams: &mut Vec<Option<(Running, u64)>>, due: &mut Due| {
        while let Some(&Reverse((at, number))) = due.peek()
            && at <= until
        {
            due.pop();
            clock.advance(at - now);
            now = at;
            let Some((mut running, left)) = streams[number].take() else {
                continue;
            };
            let part = left.min(PART);
            let stopped = !running.extend(part);
            used += part;
            if stopped && part < left {
                aborted += 1;
            } else if part < left {
                due.push(Reverse((at + time_of(left - part), number)));
                streams[number] = Some((running, left - part));
                continue;
            }
            estimates.observe("all", requests[number].output - (left - part));
            running.end()?;
        }
        if until < Duration::MAX {
            clock.advance(until - now);
            now = until;
        }
        Ok::<(), Box<dyn Error>>(())
    };
    for (number, request) in requests.iter().enumerate() {
        step(request.at, &mut streams, &mut due)?;
        let units = match reserve {
            Reserve::Fixed(units) => units,
            Reserve::Learned(_) => {
                // What is larger than the budget is never admitted, so that nothing would be learnt.
                estimates.estimate("all", MAX_TOKENS.min(amount))
            }
            Reserve::Clairvoyant => request.output,
        };
        let running = gate.reserve(request.input, units);
        match &running {
            Some(_) => due.push(Reverse((request.at + time_of(request.output), number))),
            None => refused += 1,
        }
        used_input += if running.is_some() {
            counted(request) - request.output
        } else {
            0
        };
        streams.push(running.map(|running| (running, request.output)));
    }
    step(Duration::MAX, &mut streams, &mut due)?;
    let all = requests.len() as f64;
    Ok(Outcome {
        refused: f64::from(refused) / all,
        aborted: f64::from(aborted) / all,
        used: (used + used_input) as f64 / (amount as f64 * minutes),
    })
}

/// The refused part over the budget, a panel for each trace.
fn plot(traces: &[(&str, Vec<Request>)]) -> Result<String, Box<dyn Error>> {
    const SHARES: [f64; 8] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 300\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"720\" height=\"300\" fill=\"white\"/>\n",
    );
    for (panel, (name, requests)) in traces.iter().enumerate() {
        let left = 50.0 + 350.0 * panel as f64;
        let place = |share: f64, refused: f64| (left + (share - 0.3) / 0.7 * 280.0, 240.0 - refused * 200.0);
        writeln!(
            svg,
            "<text x=\"{left}\" y=\"24\">{name}: refused, by budget / demand</text>"
        )?;
        for mark in 0..=4 {
            let ((x, y), value) = (place(0.3, f64::from(mark) / 4.0), f64::from(mark) / 4.0);
            writeln!(
                svg,
                "<path d=\"M{x} {y}h280\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value}</text>",
                x - 6.0,
                y + 4.0
            )?;
        }
        for share in SHARES {
            let x = place(share, 0.0).0;
            writeln!(
                svg,
                "<text x=\"{x:.0}\" y=\"258\" text-anchor=\"middle\">{share}</text>"
            )?;
        }
        for (number, (label, colour, reserve)) in RESERVES.into_iter().enumerate() {
            let mut points = String::new();
            for share in SHARES {
                let (x, y) = place(share, run(requests, Source::Minute, reserve, share)?.refused);
                write!(points, "{x:.1},{y:.1} ")?;
            }
            let x = left - 20.0 + 66.0 * number as f64;
            writeln!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <text x=\"{x}\" y=\"284\" fill=\"{colour}\">{label}</text>"
            )?;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn main() -> Result<(), Box<dyn Error>> {
    let traces = [("conv", read("conv")?), ("code", read("code")?)];
    let mut table =
        String::from("| tokens | trace | reserved | refused | aborted | used |\n|---|---|---|---|---|---|\n");
    for (label, source) in [
        ("output, by the minute", Source::Minute),
        ("all, in a bucket", Source::Bucket),
    ] {
        for (name, requests) in &traces {
            let mut outcomes = Vec::new();
            for (reserved, _, reserve) in RESERVES {
                let outcome = run(requests, source, reserve, 0.5)?;
                let Outcome { refused, aborted, used } = outcome;
                writeln!(
                    table,
                    "| {label} | {name} | {reserved} | {refused:.3} | {aborted:.4} | {used:.3} |"
                )?;
                outcomes.push(outcome);
            }
            let [fixed, _, learned, _, clairvoyant] = &outcomes[..] else {
                continue;
            };
            // What the documentation says: at least half of the gap is gone, and at most one request of a thousand is stopped.
            if *name == "conv" {
                assert!(fixed.refused - learned.refused >= (fixed.refused - clairvoyant.refused) / 2.0);
                assert!(learned.aborted <= 0.001, "{} aborted", learned.aborted);
            }
            // Nothing is stopped whose cost is known, and no budget is exceeded by it.
            assert!(clairvoyant.aborted == 0.0 && clairvoyant.used <= 1.02);
        }
    }
    print!("{table}");
    if std::env::args().nth(1).as_deref() == Some("docs") {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        std::fs::write(docs.join("budgets.svg"), plot(&traces)?)?;
    }
    Ok(())
}
