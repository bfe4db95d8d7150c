//! The pages that the examples write, in a real browser: `ci/deep pages`. `ci/browser` opens them, and fails when a page
//! prints anything on its console.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs an example, which cargo builds beside the tests, and returns where its page is.
fn page_of(example: &str, arguments: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "build the examples first");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(path)
        .current_dir(root())
        .args(arguments)
        .arg("--out")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = folder.path().join("report.html");
    (folder, page)
}

fn open(page: &Path) -> Output {
    let script = root().join("ci/browser");
    Command::new(script).arg("open").arg(page).output().unwrap()
}

/// Points at the middle of every plot, and leaves the first again.
const POINT: &str = "<script>
    const plots = [...document.querySelectorAll('figure svg')];
    for (const plot of plots) {
        const box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 5}));
    }
    plots[0].dispatchEvent(new PointerEvent('pointerleave'));
</script></body>";

/// Opens a page, points at all its plots, and asserts their number and that all but the first say something.
fn opens_with_plots(page: &Path, plots: usize) {
    let text = std::fs::read_to_string(page).unwrap();
    let pointed = page.with_file_name("pointed.html");
    std::fs::write(&pointed, text.replace("</body>", POINT)).unwrap();
    for page in [page, &pointed] {
        let output = open(page);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let document = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(document.matches("<figure>").count(), plots);
        let silent = document.matches(r#"<output class="tip"></output>"#).count();
        let expected = if page == pointed { 1 } else { plots };
        assert_eq!(silent, expected, "of {plots} plots");
    }
    let output = open(&pointed);
    let document = String::from_utf8_lossy(&output.stdout);
    assert!(document.contains("in flight "), "it says the values by name");
}

#[test]
fn the_pages_of_the_gateway_open_without_a_console_error() {
    let (_folder, page) = page_of("gateway", &["--first", "3000"]);
    opens_with_plots(&page, 10);
    let (_folder, page) = page_of("gateway", &["--first", "1000", "--live", "3600"]);
    opens_with_plots(&page, 10);
}

#[test]
fn the_pages_of_the_lab_open_without_a_console_error() {
    let policy = "crates/examples/examples/lab/gateway.toml";
    let (_folder, page) = page_of("lab", &[policy, "--against", "crates/examples/examples/lab/tight.toml"]);
    opens_with_plots(&page, 10);
    let (_folder, page) = page_of("lab", &["crates/examples/examples/lab/web.toml", "--trace", "nasa"]);
    opens_with_plots(&page, 5);
    let aim = ["--first", "1000", "--propose", "refused=2%"];
    let (_folder, page) = page_of("lab", &[&[policy], &aim[..]].concat());
    opens_with_plots(&page, 10);
}

/// Ends the example when it is dropped.
struct Served(std::process::Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_slider_of_the_lab_that_moves_replays_the_trace() {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("lab{}", std::env::consts::EXE_SUFFIX));
    let arguments = [
        "crates/examples/examples/lab/gateway.toml",
        "--first",
        "1000",
        "--serve",
        "0",
    ];
    let lab = Command::new(path)
        .current_dir(root())
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lab = Served(lab);
    let mut said = String::new();
    BufReader::new(lab.0.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let address = said.trim().strip_prefix("lab: ").unwrap();
    // Moves the last slider, that of the calls in flight, to one: far more is refused. What is not so is an error on the console.
    let script = "
        const before = document.querySelector('#result table').textContent;
        const slider = [...document.querySelectorAll('.sliders input')].at(-1);
        slider.value = 0;
        slider.dispatchEvent(new Event('input'));
        setTimeout(() => {
            const after = document.querySelector('#result table').textContent;
            if (after === before) console.error('the table has not changed');
            if (slider.nextElementSibling.value !== '1') console.error('the number is ' + slider.nextElementSibling.value);
            if (!location.search.includes('=0')) console.error('the address does not keep the number');
            slider.value = 5;
            slider.dispatchEvent(new Event('input'));
        }, 1500);
    ";
    let watched = Command::new(root().join("ci/browser"))
        .args(["watch", address, "replays", "", "2", script])
        .output()
        .unwrap();
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));
}

/// What the tests above rest on: that something wrong would be seen.
#[test]
fn faults_of_a_page_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let icon = "<link rel=icon href='data:,'>";
    for (body, said) in [
        ("<script>nothing.here()</script>", "nothing is not defined"),
        ("<script>console.error('so it is')</script>", "so it is"),
        (
            "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><img src=http://127.0.0.1:9/x.png>",
            "Content Security Policy",
        ),
    ] {
        std::fs::write(&page, format!("<!DOCTYPE html>{icon}{body}")).unwrap();
        let output = open(&page);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{body}");
        assert!(log.contains(said), "{log}");
    }
    std::fs::write(&page, format!("<!DOCTYPE html>{icon}<p>nothing is wrong")).unwrap();
    assert!(open(&page).status.success());
    assert!(!open(Path::new("http://127.0.0.1:9/")).status.success());
    assert!(!open(&folder.path().join("missing.html")).status.success());
}
