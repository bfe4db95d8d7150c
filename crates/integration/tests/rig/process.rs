//! The test binary run again, as a client of its own process.

use super::server::{go_on, stop};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// What the process is told stands in this variable, as JSON.
const TOLD: &str = "TOLLGATE_RIG";

/// A client that runs, or was stopped. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Runs the test `entry` of this binary, an ignored one, in a process of its own, and tells it `parameters`.
    pub(crate) fn start(entry: &str, parameters: &impl Serialize) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([entry, "--exact", "--ignored", "--nocapture", "--quiet"])
            .env(TOLD, serde_json::to_string(parameters)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    pub(crate) fn pause(&self) -> io::Result<()> {
        stop(&self.child)
    }

    pub(crate) fn resume(&self) -> io::Result<()> {
        go_on(&self.child)
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Tells it that the run is over, and waits until it has ended.
    pub(crate) fn close(mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process was told, if it is one of the rig's.
pub(crate) fn told<T: DeserializeOwned>() -> Option<T> {
    let told = std::env::var(TOLD).ok()?;
    Some(serde_json::from_str(&told).expect("the rig tells what its process knows to read"))
}

/// Ends when the rig says that the run is over, or is itself no more.
pub(crate) fn until_closed() -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| drop(io::stdin().read_to_end(&mut Vec::new())))
}
