//! Hashes every file of a directory tree with a bounded concurrency, and changes the bound while it runs.
//!
//! The loop that starts the tasks waits for a permit before it makes one, so that only as many exist as may run. A
//! shrink below what is running is effective at once: no file is started before enough have ended.
//!
//! ```text
//! cargo run --release --example fan_out -- --cap 8 /usr/share/doc
//! ```
//! Exit code 1: a file could not be read, or the digests are wrong. Exit code 2: the arguments are.

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;
use tollgate::Semaphore;

/// Hashes a directory tree with a cap on concurrent work.
#[derive(Parser)]
struct Args {
    /// The tree; this crate's own sources unless given. Links are not followed.
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/src"))]
    root: PathBuf,
    /// How many files are hashed at once, at most.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=512))]
    cap: usize,
    /// After how many files the cap changes.
    #[arg(long, default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    every: usize,
}

type Hash = [u8; 32];

/// Every regular file below `root`, in order.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| at(&folder, error))?;
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn hash(path: &Path) -> io::Result<Hash> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).map_err(|error| at(path, error))?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).map_err(|error| at(path, error))? {
            0 => return Ok(hasher.finalize().into()),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// The observed concurrency, counted without the semaphore.
#[derive(Default)]
struct Seen {
    peak: usize,
    changes: usize,
    debt: usize,
}

/// The caps that are gone through: down below what runs, to one, and up again.
fn caps(cap: usize) -> impl Iterator<Item = usize> {
    [cap, cap.div_ceil(2), 1, cap.div_ceil(3)].into_iter().cycle()
}

async fn hash_all(args: &Args, paths: &[PathBuf]) -> io::Result<(BTreeMap<PathBuf, Hash>, Seen)> {
    let limit = Arc::new(Semaphore::new(args.cap));
    let running = Arc::new(AtomicUsize::new(0));
    let mut next_cap = caps(args.cap).skip(1);
    let (mut cap, mut seen) = (args.cap, Seen::default());
    let mut tasks = JoinSet::new();
    let mut hashes = BTreeMap::new();
    for (index, path) in paths.iter().enumerate() {
        if index > 0 && index % args.every == 0 {
            cap = next_cap.next().unwrap_or(args.cap);
            limit.set_limit(cap);
            seen.changes += 1;
            seen.debt = seen.debt.max(limit.debt());
        }
        // Back-pressure: no task is made before it may run.
        let permit = Arc::clone(&limit).acquire_owned().await.map_err(io::Error::other)?;
        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= cap, "{now} run, and {cap} may");
        seen.peak = seen.peak.max(now);
        let (path, running) = (path.clone(), Arc::clone(&running));
        tasks.spawn_blocking(move || {
            let hashed = hash(&path);
            running.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
            hashed.map(|hash| (path, hash))
        });
        while let Some(done) = tasks.try_join_next() {
            hashes.extend([done.map_err(io::Error::other)??]);
        }
    }
    while let Some(done) = tasks.join_next().await {
        hashes.extend([done.map_err(io::Error::other)??]);
    }
    assert_eq!((limit.in_use(), limit.debt()), (0, 0));
    Ok((hashes, seen))
}

fn run(args: &Args, paths: &[PathBuf]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let (hashes, seen) = runtime.block_on(hash_all(args, paths))?;
    assert!(seen.peak <= args.cap);
    // One after the other, the same comes out.
    let mut tree = Sha256::new();
    for path in paths {
        let hash = hash(path)?;
        assert_eq!(hashes.get(path), Some(&hash), "{}", path.display());
        tree.update(hash);
    }
    assert_eq!(hashes.len(), paths.len());
    let tree: String = tree.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!(
        "{} files, {tree}\npeak {} of at most {}; the cap changed {} times, at most {} more ran than it allowed",
        paths.len(),
        seen.peak,
        args.cap,
        seen.changes,
        seen.debt
    );
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let paths = match files(&args.root) {
        Ok(paths) => paths,
        Err(error) => {
            eprintln!("fan_out: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&args, &paths) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fan_out: {error}");
            ExitCode::FAILURE
        }
    }
}
