//! A policy in a file that an operator edits while the service runs: a better version, a wrong one, a leg on trial.
//!
//! `cargo run --features policy-watch --example policy_file`
//!
//! The file is watched; each edit is saved as editors do, by renaming. The result is printed, and so is how each
//! leg stands, and in which order the legs are best asked.

use std::error::Error;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tollgate::policy::explain::LegOrder;
use tollgate::policy::source::{FileSource, PolicyEvent};
use tollgate::policy::spec::PolicySpec;
use tollgate::{Ask, Clock, LimiterExt};

const FIRST: &str = r#"
[[leg]]
name = "requests"
kind = "token-bucket"
quota = "1000/s burst 1000"

[[leg]]
name = "in flight"
kind = "semaphore"
limit = 2
"#;

fn save(path: &Path, text: &str) -> std::io::Result<()> {
    let other = path.with_extension("new");
    std::fs::write(&other, text)?;
    std::fs::rename(other, path)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("policy.toml");
    save(&path, FIRST)?;

    let (spec, mut source) = FileSource::<PolicySpec>::open(&path)?;
    source.watch().map_err(|error| error as Box<dyn Error>)?;
    let policy = spec.build(&Clock::real())?;
    let (sender, events) = mpsc::channel();
    let followed = policy.clone();
    std::thread::spawn(move || {
        Clock::real().run(followed.follow(source, |event| drop(sender.send(event))));
    });
    let next = || -> Result<PolicyEvent, Box<dyn Error>> {
        let event = events.recv_timeout(Duration::from_secs(30))?;
        println!("{event}");
        Ok(event)
    };

    let held = (policy.try_admit(Ask::one()).ok(), policy.try_admit(Ask::one()).ok());
    let refused = policy.try_admit(Ask::one()).map(drop).unwrap_err();
    println!("refused: {refused}");
    let mut advice = LegOrder::new();
    for _ in 0..100 {
        advice.count(&policy.explain(Ask::one()));
    }
    println!("{advice}");

    let wrong = FIRST.replace("limit = 2", "limt = 3");
    save(&path, &wrong)?;
    assert!(matches!(next()?, PolicyEvent::Refused(_)));

    let trial = "[[leg]]\nname = \"trial\"\nkind = \"token-bucket\"\nquota = \"1/h burst 1\"\nshadow = true\n";
    save(&path, &format!("{}{trial}", FIRST.replace("limit = 2", "limit = 5")))?;
    assert!(matches!(next()?, PolicyEvent::Applied(_)));
    let more: Vec<_> = (0..3).filter_map(|_| policy.try_admit(Ask::one()).ok()).collect();
    assert_eq!((more.len(), policy.limiter().in_use("in flight")), (3, Some(5)));
    for leg in policy.limiter().status() {
        println!(
            "{:10} {:14} {:?} of {:?} left, would have refused {}",
            leg.name,
            leg.kind(),
            leg.available,
            leg.capacity,
            leg.trial.refused
        );
    }
    drop((held, more));
    Ok(())
}
