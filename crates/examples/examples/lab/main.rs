//! A lab for policies: any policy file against real traffic, in virtual time. It prints a table and writes a page with
//! plots; two policies stand side by side; and it proposes the smallest limits that meet a stated aim.
//!
//! ```text
//! cargo run --release -p tollgate-examples --example lab -- crates/examples/examples/lab/gateway.toml --trace azure-code
//! cargo run ... -- crates/examples/examples/lab/gateway.toml --trace azure-code --against crates/examples/examples/lab/tight.toml
//! cargo run ... -- crates/examples/examples/lab/gateway.toml --trace azure-code --propose refused=2% wait=1s
//! cargo run ... -- crates/examples/examples/lab/gateway.toml --trace azure-code --serve   # a page whose sliders are the limits
//! ```
//!
//! A trace of your own is a CSV file, plain or gzipped (`.gz`), with a header that names its columns, in any order:
//!
//! | column | what it is |
//! |---|---|
//! | `at` | seconds, with a fraction, of when the request came; never less than in the line before |
//! | `hold` | seconds for which it works once it is admitted; without this column `--hold` |
//! | `failed` | whether the work fails, which a breaker hears: `0` or `1`, `no` or `yes`; without it, none does |
//! | any other name, as `tokens` | a cost of that name: whole units that are charged on admission |
//! | that name and `.used` | what the cost comes to in the end; without it, what was charged |
//!
//! An admission log of the library (`tollgate_observe::record`) is such a file. What another version of a policy would do to its requests
//! is a plan, which a check before a change of limits can run:
//!
//! ```text
//! cargo run ... -- plan old.toml new.toml --log FILE --most-denied 1%
//! ```
//!
//! Only the costs that the policy counts are read. Exit code 1: no limits meet the aim, or the plan denies or allows more than it may. Exit code 2: a file or an
//! argument is wrong, which is said with its line.

#![allow(unreachable_pub)]

#[allow(dead_code)]
#[path = "../../../../examples/gateway/trace.rs"]
mod azure;
mod error;
mod knob;
#[path = "../../../../examples/report/mod.rs"]
mod page;
mod plan;
mod proposal;
mod replay;
mod search;
mod serve;
mod summary;
mod trace;

use clap::{Parser, Subcommand};
use error::LabError;
use replay::Bench;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use summary::Tried;
use tollgate_config::{ConfigError, KeyedSpec, PolicySetSpec, PolicySpec, load};
use trace::Trace;

/// Tries a policy file on real traffic, in virtual time.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<RunArgs>,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the requests of a log that another version of a policy would decide otherwise.
    Plan(plan::PlanArgs),
}

#[derive(clap::Args)]
struct RunArgs {
    /// The policy, TOML or JSON.
    policy: PathBuf,
    /// `azure-code`, `azure-conv`, `nasa`, or a CSV file: see the top of crates/examples/examples/lab/main.rs.
    #[arg(long, default_value = "azure-code")]
    trace: String,
    /// The policy of a service's file: its name, or `MAP.TIER`, which is replayed as the policy of one key.
    #[arg(long = "policy", value_name = "NAME")]
    named: Option<String>,
    /// Another policy, to stand beside it.
    #[arg(long, value_name = "POLICY", conflicts_with = "propose")]
    against: Option<PathBuf>,
    /// Proposes the smallest limits that meet this: `refused=2%`, `wait=1s` (which 99 of 100 must not exceed).
    #[arg(long, value_name = "AIM", num_args = 1..=2)]
    propose: Vec<String>,
    /// How long a request works, of a trace that does not say.
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    hold: Duration,
    /// Replays only the first REQUESTS requests.
    #[arg(long, value_name = "REQUESTS")]
    first: Option<usize>,
    /// Serves a page at this port of 127.0.0.1, on which the limits are sliders. 0 takes a free port.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8088", conflicts_with_all = ["propose", "against"])]
    serve: Option<u16>,
    /// Where the page and the CSV go.
    #[arg(long, default_value = "target/lab")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let done = match Args::parse() {
        Args {
            command: Some(Command::Plan(args)),
            ..
        } => plan::run(&args),
        Args { run: Some(args), .. } => run(&args),
        Args { run: None, .. } => unreachable!("a policy is required without a command"),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::from(2)
        }
    }
}

/// Reads the file of one policy, or the policy of a service's file that is named.
fn read(path: &Path, named: Option<&str>) -> Result<PolicySpec, LabError> {
    let wrong = |error: ConfigError| LabError::new(error.to_string());
    let Some(named) = named else {
        return load::<PolicySpec>(path).map_err(wrong);
    };
    let set = load::<PolicySetSpec>(path).map_err(wrong)?;
    let tier = |(map, tier): (&str, &str)| set.keyed.get(map)?.tiers.get(tier);
    let policy = set.policies.get(named).or_else(|| named.split_once('.').and_then(tier));
    policy.cloned().ok_or_else(|| {
        let tiers =
            |(map, keyed): (&String, &KeyedSpec)| keyed.tiers.keys().map(|tier| format!("{map}.{tier}")).collect();
        let tiers: Vec<Vec<String>> = set.keyed.iter().map(tiers).collect();
        let names = set.policies.keys().chain(tiers.iter().flatten()).map(String::as_str);
        let names = names.collect::<Vec<_>>().join(", ");
        LabError::new(format!(
            "{}: `{named}` is no policy, and there are: {names}",
            path.display()
        ))
    })
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), LabError> {
    fs::write(path, text).map_err(|error| LabError::new(format!("{}: {error}", path.display())))
}

/// What the report calls a policy: the name of its file, or all of its path beside another of that name.
fn name(path: &Path, other: Option<&Path>) -> String {
    let same = other.is_some_and(|other| other.file_stem() == path.file_stem());
    match path.file_stem() {
        Some(stem) if !same => stem.to_string_lossy().into_owned(),
        _ => path.display().to_string(),
    }
}

/// The costs that these policies count.
fn counted<'a>(specs: impl IntoIterator<Item = &'a PolicySpec>) -> Vec<String> {
    let mut wanted: Vec<String> = Vec::new();
    for leg in specs.into_iter().flat_map(|spec| &spec.legs) {
        wanted.extend(leg.per.clone().filter(|cost| !wanted.contains(cost)));
    }
    wanted
}

fn run(args: &RunArgs) -> Result<bool, LabError> {
    let named = args.named.as_deref();
    let spec = read(&args.policy, named)?;
    let against = args.against.as_deref().map(|path| read(path, named)).transpose()?;
    let aim = match args.propose.as_slice() {
        [] => None,
        texts => Some(search::Aim::parse(texts)?),
    };
    let wanted = counted([Some(&spec), against.as_ref()].into_iter().flatten());
    let mut trace = Trace::read(&args.trace, &wanted, args.hold)?;
    trace.requests.truncate(args.first.unwrap_or(usize::MAX).max(1));
    if let Some(port) = args.serve {
        serve::serve(port, name(&args.policy, None), spec, trace)?;
        return Ok(true);
    }
    fs::create_dir_all(&args.out).map_err(|error| LabError::new(format!("{}: {error}", args.out.display())))?;

    let mut policies = vec![(name(&args.policy, args.against.as_deref()), spec.clone())];
    if let (Some(path), Some(spec)) = (&args.against, against) {
        let again = if *path == args.policy { " (again)" } else { "" };
        policies.push((name(path, Some(&args.policy)) + again, spec));
    }
    let mut tables = Vec::new();
    let mut notes = vec![
        "A refusal is counted for the leg that the request would have waited for, or that refused it at once."
            .to_owned(),
    ];
    let all = || policies.iter().flat_map(|(_, spec)| &spec.legs);
    if all().any(|leg| leg.when.is_some()) {
        notes.push(
            "Conditional legs count only while they apply, and are not drawn among the budgets and limits.".into(),
        );
    }
    if let Some(aim) = aim {
        // Draws on a terminal only.
        let bar = indicatif::ProgressBar::new_spinner();
        let found = search::propose(&spec, &trace, aim, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let Some(found) = found else {
            eprintln!("lab: {aim}: not even with all limits out of the way");
            return Ok(false);
        };
        tables.push(proposal::table(&found, &spec, &aim));
        notes.push(proposal::guarantee(&found));
        if let Some(text) = proposal::edited(&args.policy, &found)? {
            write(&args.out.join("proposed.toml"), text)?;
        }
        policies.push(("proposed".into(), found.spec));
    }
    let mut tried = Vec::new();
    for (name, spec) in policies {
        let replay = Bench::new(&spec, &trace)?.run(&spec)?;
        tried.push(Tried { name, spec, replay });
    }
    tables.push(summary::table(&tried, &trace));
    let page = summary::page(&tried, &trace, tables, notes);
    let text: Vec<_> = page.tables.iter().chain(&page.below).map(page::Table::text).collect();
    let text = text.join("\n");
    write(&args.out.join("report.txt"), &text)?;
    write(&args.out.join("requests.csv"), summary::csv(&tried)?)?;
    write(&args.out.join("report.html"), page.render())?;
    print!("{text}");
    println!("written to {}", args.out.display());
    Ok(true)
}
