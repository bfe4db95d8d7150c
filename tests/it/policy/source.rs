//! A policy file that changes while it is in use: what editors and administrators do to it.

use std::fs;
use std::path::{Path, PathBuf};
use tollgate::policy::source::{FileSource, Look};
use tollgate::policy::spec::{PolicySpec, SemaphoreRule};

fn text(limit: usize) -> String {
    format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
}

fn limit(spec: &PolicySpec) -> usize {
    spec.legs[0].rule.get::<SemaphoreRule>().unwrap().limit
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

#[track_caller]
fn same(source: &mut FileSource) {
    let look = source.look();
    assert!(matches!(look, Look::Same), "{look:?}");
}

#[track_caller]
fn unsettled(source: &mut FileSource) {
    let look = source.look();
    assert!(matches!(look, Look::Unsettled), "{look:?}");
}

#[track_caller]
fn version(source: &mut FileSource) -> usize {
    match source.look() {
        Look::Version(Ok(spec)) => limit(&spec),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn error(source: &mut FileSource) -> String {
    match source.look() {
        Look::Version(Err(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn save_by_rename(path: &Path, text: &str) {
    let other = path.with_extension("toml~");
    fs::write(&other, text).unwrap();
    fs::rename(other, path).unwrap();
}

#[test]
fn a_file_that_is_saved_by_renaming_counts_once_it_has_settled() {
    let (_folder, path, mut source) = opened();
    same(&mut source);
    save_by_rename(&path, &text(2));
    unsettled(&mut source);
    assert_eq!(version(&mut source), 2);
    same(&mut source);
}

/// Given a file that is truncated and written in three strokes, of which the second is a policy in itself, when it is
/// looked at between the strokes, then only the whole counts.
#[test]
fn a_file_that_is_being_written_does_not_count() {
    let (_folder, path, mut source) = opened();
    let whole = format!(
        "{}[[leg]]\nname = \"rate\"\nkind = \"token-bucket\"\nquota = \"5/s\"\n",
        text(2)
    );
    for stroke in ["", &text(2), &whole[..whole.len() - 4]] {
        fs::write(&path, stroke).unwrap();
        unsettled(&mut source);
    }
    fs::write(&path, &whole).unwrap();
    unsettled(&mut source);
    match source.look() {
        Look::Version(Ok(spec)) => assert_eq!(spec.legs.len(), 2),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_truncated_and_written_as_it_was_is_the_same() {
    let (_folder, path, mut source) = opened();
    fs::write(&path, "").unwrap();
    unsettled(&mut source);
    fs::write(&path, text(1)).unwrap();
    same(&mut source);
}

#[test]
fn a_wrong_file_is_reported_once_and_then_mended() {
    let (_folder, path, mut source) = opened();
    fs::write(&path, text(2).replace("limit", "limt")).unwrap();
    unsettled(&mut source);
    let said = error(&mut source);
    assert!(said.contains("policy.toml:4:1: key `limt` is unknown here"), "{said}");
    same(&mut source);
    // Back as it was before: the version in force is that one still.
    fs::write(&path, text(1)).unwrap();
    unsettled(&mut source);
    same(&mut source);
    fs::write(&path, text(3)).unwrap();
    unsettled(&mut source);
    assert_eq!(version(&mut source), 3);
}

#[test]
fn a_deleted_file_is_reported_once_and_may_come_back() {
    let (_folder, path, mut source) = opened();
    fs::remove_file(&path).unwrap();
    unsettled(&mut source);
    let said = error(&mut source);
    assert!(said.contains("policy.toml: "), "{said}");
    same(&mut source);
    fs::write(&path, text(1)).unwrap();
    unsettled(&mut source);
    same(&mut source);
    fs::remove_file(&path).unwrap();
    unsettled(&mut source);
    save_by_rename(&path, &text(4));
    unsettled(&mut source);
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
    unsettled(&mut source);
    assert_eq!(version(&mut source), 2);
}

/// Given a watched file that is only looked at when something happens, when it is saved by renaming, deleted and restored,
/// then each settled change arrives. The one test that waits for the system: until it has said so, for a minute at most.
#[cfg(feature = "policy-watch")]
#[test]
fn a_watched_file_tells_by_itself() {
    use std::sync::mpsc;
    use std::time::Duration;
    use tollgate::policy::source::PolicySource;
    let (_folder, path, mut source) = opened();
    source.watch().expect("a folder can be watched here");
    let mut source = source
        .settle_for(Duration::from_millis(1))
        .look_every(Duration::from_secs(3_600));
    let (sender, versions) = mpsc::channel();
    std::thread::spawn(move || {
        while let Some(version) = tollgate::Clock::real().run(source.next()) {
            if sender
                .send(version.map(|spec| limit(&spec)).map_err(|error| error.to_string()))
                .is_err()
            {
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
    fs::write(path.with_extension("new"), text(3)).unwrap();
    fs::rename(path.with_extension("new"), &path).unwrap();
    assert_eq!(next(), Ok(3));
}

/// Given a file that has just changed, when the call that waits for a version is dropped and made again and again, then the
/// change still has to settle; and it settles although no call lasts so long.
#[test]
fn a_call_that_is_dropped_forgets_nothing() {
    use std::task::{Context, Waker};
    use tollgate::policy::source::PolicySource;
    let (_folder, path, source) = opened();
    let long = std::time::Duration::from_secs(3_600);
    // Each call is dropped as soon as it waits for the disk or for the time to pass: true when one gave a version before that
    // was all it waited for.
    let calls = |source: &mut FileSource| {
        loop {
            let mut call = Box::pin(source.next());
            let ready = call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            drop(call);
            if ready || format!("{source:?}").contains("settling: true") {
                return ready;
            }
            std::thread::yield_now();
        }
    };
    let mut patient = source.settle_for(long);
    save_by_rename(&path, &text(2));
    for _ in 0..100 {
        assert!(!calls(&mut patient), "an hour has not passed");
    }
    let mut hasty = patient.settle_for(std::time::Duration::ZERO);
    save_by_rename(&path, &text(3));
    unsettled(&mut hasty);
    assert_eq!(version(&mut hasty), 3);
    save_by_rename(&path, &text(4));
    while !calls(&mut hasty) {}
}
