//! Processes that are forked from one parent: they share its memory, and no session.

use crate::rig::process::{Process, parameters};
use crate::store::{key, store};
use fork::{Fork, fork, waitpid};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tollgate::remote::{Key, Remote};

const CHILDREN: usize = 3;
/// How long each holds the one permit.
const HELD: Duration = Duration::from_millis(200);

#[derive(Serialize, Deserialize)]
struct Family {
    name: String,
    /// Where each child writes from when to when it held the permit.
    folder: PathBuf,
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a clock")
}

/// The parent: its children are forked before any other thread exists.
#[test]
#[ignore = "a process of the test below"]
fn a_family() {
    let family: Family = parameters().expect("started by the test below");
    // The keys of this thread's hash maps have been drawn: a fork copies them.
    let drawn = HashMap::from([(1, 1)]);
    let forked = (0..CHILDREN).map(|n| match fork().expect("a child") {
        Fork::Parent(child) => child,
        Fork::Child => {
            hold(&family, n);
            std::process::exit(0);
        }
    });
    for child in forked.collect::<Vec<_>>() {
        waitpid(child).expect("it ends");
    }
    assert_eq!(drawn.len(), 1);
}

fn hold(family: &Family, n: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let key = Key::new(family.name.as_str()).expect("a name");
        let remote = Remote::permits(key, 1).spawn(store()).expect("settings that can be");
        let permit = remote.acquire(1).await.expect("in turn");
        let begun = since_epoch();
        tokio::time::sleep(HELD).await;
        let ended = since_epoch();
        drop(permit);
        remote.close().await;
        let held = serde_json::to_string(&(begun, ended)).expect("numbers");
        std::fs::write(family.folder.join(n.to_string()), held).expect("a file");
    });
}

fn held(folder: &Path, n: usize) -> (Duration, Duration) {
    let text = std::fs::read_to_string(folder.join(n.to_string())).expect("each child has held the permit");
    serde_json::from_str(&text).expect("what a child wrote")
}

/// Given processes forked from one parent, which all want the one permit, then each has it once, and no two at a time.
#[test]
fn processes_forked_from_one_parent_have_sessions_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let family = Family {
        name: key().to_string(),
        folder: folder.path().to_path_buf(),
    };
    let parent = Process::start("forked::a_family", &family).expect("the test binary");
    assert!(parent.close().expect("it ends").success());
    let mut times: Vec<_> = (0..CHILDREN).map(|n| held(folder.path(), n)).collect();
    times.sort();
    for pair in times.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two held the permit at once: {times:?}");
    }
}
