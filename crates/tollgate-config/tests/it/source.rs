//! Where versions come from: a file, and this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use tollgate::ManualClock;
use tollgate_config::{ConfigError, ConfigFile, FileSource, LegKind, LegSpec, PolicySpec, Reload};

fn text(limit: usize) -> String {
    format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
}

fn limit(spec: &PolicySpec) -> usize {
    match &spec.legs[0].kind {
        LegKind::Semaphore { limit } => *limit,
        other => panic!("{other:?}"),
    }
}

/// A folder with a policy file of limit 1, and its source.
fn opened() -> (tempfile::TempDir, PathBuf, FileSource) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    fs::write(&path, text(1)).unwrap();
    let (spec, source) = FileSource::open(&path).unwrap();
    assert_eq!(limit(&spec), 1);
    (folder, path, source)
}

fn save_by_rename(path: &Path, text: &str) {
    let other = path.with_extension("toml~");
    fs::write(&other, text).unwrap();
    fs::rename(other, path).unwrap();
}

#[track_caller]
fn version(source: &mut FileSource) -> usize {
    limit(&source.look().expect("it has changed").expect("it is right"))
}

#[test]
fn each_content_of_a_file_counts_once() {
    let (_folder, path, mut source) = opened();
    assert!(source.look().is_none());
    save_by_rename(&path, &text(2));
    assert_eq!(version(&mut source), 2);
    assert!(source.look().is_none());
    fs::write(&path, text(3).replace("limit", "limt")).unwrap();
    let said = source.look().unwrap().unwrap_err().to_string();
    assert!(said.contains("policy.toml:4:1: key `limt` is unknown here"), "{said}");
    assert!(source.look().is_none());
    // Back as it was before: the version in force is that one still.
    fs::write(&path, text(2)).unwrap();
    assert!(source.look().is_none());
    fs::remove_file(&path).unwrap();
    assert!(source.look().unwrap().is_err());
    assert!(source.look().is_none());
    fs::write(&path, text(4)).unwrap();
    assert_eq!(version(&mut source), 4);
}

/// As Kubernetes mounts a configuration: a link to a file below a link to a folder, which is swapped.
#[cfg(unix)]
#[test]
fn a_link_that_is_swapped_above_the_file_counts() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, n) in [("first", 1), ("second", 2)] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("policy.toml"), text(n)).unwrap();
    }
    symlink("first", at("..data")).unwrap();
    symlink("..data/policy.toml", at("policy.toml")).unwrap();
    let (_, mut source) = FileSource::open(at("policy.toml")).unwrap();
    symlink("second", at("..tmp")).unwrap();
    fs::rename(at("..tmp"), at("..data")).unwrap();
    assert_eq!(version(&mut source), 2);
}

/// Given a watched file, when it is saved by renaming, deleted and restored, then each change arrives. The one test that waits for the
/// system: until it has said so, for a minute at most.
#[cfg(feature = "watch")]
#[test]
fn a_watched_file_tells_by_itself() {
    use std::sync::mpsc;
    use std::time::Duration;
    use tollgate_config::Source;
    let (_folder, path, source) = opened();
    let mut source = source.watch().expect("a folder can be watched here");
    let (sender, versions) = mpsc::channel();
    thread::spawn(move || {
        while let Some(version) = tollgate::Clock::real().run(source.next()) {
            let version = version.map(|spec| limit(&spec)).map_err(|error| error.to_string());
            if sender.send(version).is_err() {
                return;
            }
        }
    });
    let next = || {
        versions
            .recv_timeout(Duration::from_secs(60))
            .expect("the folder is watched")
    };
    save_by_rename(&path, &text(2));
    assert_eq!(next(), Ok(2));
    fs::remove_file(&path).unwrap();
    assert!(next().is_err());
    save_by_rename(&path, &text(3));
    assert_eq!(next(), Ok(3));
}

/// Given a follower that asks for the next version while the file is being written, then it does not get what is there so far.
#[cfg(feature = "watch")]
#[test]
fn a_watched_file_is_read_when_it_is_quiet() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};
    use tollgate_config::Source;
    let (_folder, path, source) = opened();
    let mut source = source.watch().expect("a folder can be watched here");
    let start = Instant::now();
    fs::write(&path, text(2)).unwrap();
    let early = pin!(source.next()).poll(&mut Context::from_waker(Waker::noop()));
    // A thread that slept meanwhile proves nothing.
    assert!(matches!(early, Poll::Pending) || start.elapsed() >= Duration::from_millis(50));
    let version = tollgate::Clock::real().run(source.next()).unwrap();
    assert_eq!(limit(&version.unwrap()), 2);
}

#[test]
fn of_versions_that_are_handed_in_the_last_counts() {
    let spec = |limit| PolicySpec::new([LegSpec::new("permits", LegKind::Semaphore { limit })]);
    let policy = spec(1).build(&ManualClock::new()).unwrap();
    let (sender, versions) = tokio::sync::watch::channel(spec(1));
    let follower = thread::spawn({
        let policy = policy.clone();
        move || {
            let mut seen = 0;
            ManualClock::new().run(policy.follow(versions, |_| seen += 1));
            seen
        }
    });
    for limit in 2..5 {
        sender.send_replace(spec(limit));
    }
    drop(sender);
    assert!((1..=3).contains(&follower.join().unwrap()));
    assert_eq!(policy.limiter().leg("permits").unwrap().capacity(), Some(4));
}

/// The error of a source is one that `?` takes into others.
#[test]
fn the_error_of_a_source_converts() {
    fn one() -> anyhow::Result<()> {
        Err(ConfigError::whole("the store is away"))?
    }
    fn other() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        PolicySpec::default().check()?;
        Ok(())
    }
    assert_eq!(one().unwrap_err().to_string(), "the store is away");
    assert!(other().unwrap_err().to_string().contains("at least one is needed"));
}
