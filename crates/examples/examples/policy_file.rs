//! The policies of a service in a file that an operator edits while it runs: a wrong version, a leg on trial, a tenant that pays.
//!
//! `cargo run -p tollgate-examples --example policy_file`
//!
//! The file is watched; each edit is saved as editors do, by renaming. The result is printed, and so is how each
//! leg stands.

use std::error::Error;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tollgate::{Ask, Clock, LimiterExt};
use tollgate_config::{ConfigError, FileSource, PolicySetSpec, Reload};

const FIRST: &str = r#"
[[policy.global.leg]]
name = "requests"
kind = "token-bucket"
quota = "1000/s burst 1000"

[[policy.global.leg]]
name = "in flight"
kind = "semaphore"
limit = 2

[keyed.tenant]
max_keys = 100000
default = "free"
tier.free = { leg = [{ name = "requests", kind = "sliding-window", limit = 3, window = "1h" }] }
tier.paid = { leg = [{ name = "requests", kind = "sliding-window", limit = 100, window = "1h" }] }
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

    let (spec, source) = FileSource::<PolicySetSpec>::open(&path)?;
    let (set, source) = (spec.build(&Clock::real())?, source.watch()?);
    let (policy, tenants) = (set.policy("global")?, set.keyed("tenant")?);
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        Clock::real().run(set.follow(source, |event| drop(sender.send(event))));
    });
    let next = || -> Result<Result<u64, ConfigError>, Box<dyn Error>> {
        let event = events.recv_timeout(Duration::from_secs(30))?;
        match &event {
            Ok(version) => println!("version {version} is in force"),
            Err(error) => println!("refused: {error}"),
        }
        Ok(event)
    };

    let held = (policy.try_admit(Ask::one()).ok(), policy.try_admit(Ask::one()).ok());
    let refused = policy.try_admit(Ask::one()).map(drop).unwrap_err();
    println!("refused: {refused}");
    for leg in policy.explain(Ask::one()).legs {
        println!("{}: {:?}", leg.leg, leg.verdict);
    }

    let wrong = FIRST.replace("limit = 2", "limt = 3");
    save(&path, &wrong)?;
    assert!(next()?.is_err());

    let trial =
        "[[policy.global.leg]]\nname = \"trial\"\nkind = \"token-bucket\"\nquota = \"1/h burst 1\"\nshadow = true\n";
    let better = format!("{}{trial}", FIRST.replace("limit = 2", "limit = 5"));
    save(&path, &better)?;
    assert!(next()?.is_ok());
    let more: Vec<_> = (0..3).filter_map(|_| policy.try_admit(Ask::one()).ok()).collect();
    assert_eq!((more.len(), policy.limiter().in_use("in flight")), (3, Some(5)));
    for leg in policy.limiter().legs() {
        println!(
            "{:10} {:14} {:?} of {:?} left, would have refused {}",
            leg.name,
            leg.kind,
            leg.available(),
            leg.capacity(),
            leg.shadow.map_or(0, |shadow| shadow.refused)
        );
    }
    drop((held, more));

    // A tenant has used up the free tier, and pays.
    let acme = tenants.get("acme")?;
    let used = acme.try_admit(3).map(drop);
    assert!(used.is_ok() && acme.try_admit(1).is_err());
    save(&path, &format!("{better}[keyed.tenant.keys]\nacme = \"paid\"\n"))?;
    assert!(next()?.is_ok());
    let left = acme.limiter().leg("requests").and_then(|leg| leg.available());
    assert_eq!(left, Some(97), "what it has used counts");
    Ok(())
}
