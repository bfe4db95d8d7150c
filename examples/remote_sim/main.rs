//! Ten thousand machines that share a limit, in virtual time: the same `Remote` as everywhere, over a store that is half a
//! millisecond away.
//!
//! ```sh
//! cargo run --release --example remote_sim --features remote -- 200        # a fiftieth of everything
//! cargo run --release --example remote_sim --features remote -- 10000 docs # writes docs/remote.svg as well
//! ```
//!
//! Each machine wants 100 permits a second, so all of them a million; 600,000 a second are available. After 1.5 s, 30 %
//! of the machines die without a word. The same arguments give the same table.

mod plot;
mod world;

use std::path::Path;
use std::time::Duration;
use tollgate::remote::Prefetch;
use world::{Outcome, Plan, Shape};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let machines = words.next().unwrap_or_else(|| "200".into());
    let machines: u64 = machines
        .parse()
        .map_err(|_| format!("{machines} is no number of machines"))?;
    let folder = words.next();
    let ms = Duration::from_millis;
    let tokens = |most: u64, span| Prefetch {
        span,
        expiry: span * 4,
        ..Prefetch::up_to(most)
    };
    let permits = |turn| Prefetch {
        turn,
        ..Prefetch::up_to(10)
    };
    let plans = [
        ("permits, one by one", Shape::Permits, None),
        ("permits, prefetch, turn 10 ms", Shape::Permits, Some(permits(ms(10)))),
        ("permits, prefetch, turn 500 ms", Shape::Permits, Some(permits(ms(500)))),
        ("tokens, one by one", Shape::Tokens, None),
        ("tokens, prefetch of 50 ms", Shape::Tokens, Some(tokens(5, ms(50)))),
        ("tokens, prefetch of 500 ms", Shape::Tokens, Some(tokens(50, ms(500)))),
    ];
    println!(
        "| {machines} machines | utilisation | fairness | syncs a second at the store | permits a sync | full again after |"
    );
    println!("|---|---|---|---|---|---|");
    let mut outcomes = Vec::new();
    for (name, shape, prefetch) in plans {
        let outcome = world::run(&Plan {
            machines,
            shape,
            prefetch,
        });
        println!("{}", row(name, &outcome));
        if outcome.exceeded {
            return Err(format!("{name}: more was held than there is").into());
        }
        outcomes.push((name, outcome));
    }
    if let Some(folder) = folder {
        std::fs::write(Path::new(&folder).join("remote.svg"), plot::svg(&outcomes))?;
    }
    Ok(())
}

fn row(name: &str, outcome: &Outcome) -> String {
    let recovery = match outcome.recovery {
        Some(time) => format!("{} ms", time.as_millis()),
        None => "never".into(),
    };
    format!(
        "| {name} | {:.3} | {:.3} | {:.0} | {:.1} | {recovery} |",
        outcome.utilisation,
        outcome.fairness,
        outcome.syncs,
        outcome.admitted / outcome.syncs
    )
}
