//! The test binary run again, as a client of its own process.

use super::server::{go_on, stop};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// This variable has the parameters of the process, as JSON.
const PARAMETERS: &str = "TOLLGATE_RIG";

/// A client that runs, or was stopped. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Runs the test `entry` of this binary, an ignored one, in a process of its own, with `parameters`.
    pub(crate) fn start(entry: &str, parameters: &impl Serialize) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([entry, "--exact", "--ignored", "--nocapture", "--quiet"])
            .env(PARAMETERS, serde_json::to_string(parameters)?)
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

    /// Ends the run for it, and waits until it has ended.
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

/// The parameters of this process, if it is one of the rig's.
pub(crate) fn parameters<T: DeserializeOwned>() -> Option<T> {
    let told = std::env::var(PARAMETERS).ok()?;
    Some(serde_json::from_str(&told).expect("the rig tells what its process knows to read"))
}

/// Ends when the rig ends the run, or is itself gone.
pub(crate) fn until_closed() -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| drop(io::stdin().read_to_end(&mut Vec::new())))
}
