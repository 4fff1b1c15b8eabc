//! The lines that `train` leaves on a terminal, where `tmux` is installed, and elsewhere.

use crate::support::{example, folder, shardc};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\n";

/// A session of `tmux` with a server of its own, which ends with it.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs `shardc` with `arguments` in `folder`, in a window of that size; `None` without `tmux`.
    fn run(folder: &Path, name: &str, (width, height): (usize, usize), arguments: &[&str]) -> Option<Terminal> {
        let terminal = Terminal { socket: format!("shardc-{}-{name}", std::process::id()) };
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let command =
            format!("cd '{}' && '{}' {}; echo END; sleep 600", folder.display(), env!("CARGO_BIN_EXE_shardc"), words.join(" "));
        let size = [width.to_string(), height.to_string()];
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: there is no tmux");
            return None;
        }
        let started =
            terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-s", "s", "-x", &size[0], "-y", &size[1], &command]);
        started.expect("a terminal");
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The lines that stand there, those above the window too, once `done`.
    fn lines(&self, done: impl Fn(&[String]) -> bool) -> Vec<String> {
        let start = Instant::now();
        loop {
            let text = self.tmux(&["capture-pane", "-p", "-S", "-", "-t", "s"]).unwrap_or_default();
            let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_string).collect();
            if done(&lines) {
                return lines;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{lines:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

fn is_over(lines: &[String]) -> bool {
    lines.last().is_some_and(|line| line == "END")
}

#[test]
fn one_line_stays_of_the_progress() {
    let here = folder("terminal");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    std::fs::write(here.join("good.shard"), format!("{SPEC}optimizer sgd lr=0.1\n")).expect("a spec");
    std::fs::write(here.join("bad.shard"), format!("{SPEC}optimizer sgd lr=1e30\n")).expect("a spec");
    let train = |spec: &'static str, steps: &'static str| {
        let arguments =
            ["train", &model, "--spec", spec, "--data", &data, "--steps", steps, "--threads", "1", "--export", "t.onnx"];
        arguments.map(str::to_string)
    };
    let run = |name: &str, size, arguments: [String; 12]| {
        Terminal::run(&here, name, size, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (width, ends) in [(100, "step 4000/4000  [==="), (80, "step 4000/4000  [==="), (40, "4000/4000  loss ")] {
        let Some(terminal) = run(&format!("good-{width}"), (width, 10), train("good.shard", "4000")) else { return };
        let lines = terminal.lines(is_over);
        let shown: Vec<&String> = lines.iter().filter(|line| line.contains("/4000")).collect();
        assert!(shown.len() == 1 && shown[0].starts_with(ends) && shown[0].ends_with("0:00 left"), "{width}: {lines:#?}");
    }
    // An error comes below the line.
    let Some(terminal) = run("bad", (120, 10), train("bad.shard", "300")) else { return };
    let lines = terminal.lines(is_over);
    let at = lines.iter().position(|line| line.starts_with("error: ") && line.contains(" is not a finite number at step "));
    let at = at.expect("an error");
    assert!(lines[at - 1].starts_with("step ") && lines[at - 1].contains("/300  ["), "{lines:#?}");
    // The first Ctrl-C ends the step, in a window that has become smaller meanwhile.
    let Some(terminal) = run("stopped", (100, 10), train("good.shard", "100000000")) else { return };
    terminal.lines(|lines| lines.iter().any(|line| line.contains("samples/s")));
    terminal.tmux(&["resize-window", "-t", "s", "-x", "60"]).expect("a smaller window");
    terminal.lines(|lines| lines.iter().any(|line| line.contains("/100000000  loss")));
    terminal.tmux(&["send-keys", "-t", "s", "C-c"]).expect("a key");
    let lines = terminal.lines(is_over);
    let shown = lines.iter().filter(|line| line.contains("/100000000")).count();
    assert!(shown == 1 && lines.iter().all(|line| !line.contains('^')), "{lines:#?}");
    assert!(lines.iter().any(|line| line == "stopping after this step; press Ctrl-C again to abort"), "{lines:#?}");
}

#[test]
fn elsewhere_lines_are_plain() {
    let here = folder("no-terminal");
    std::fs::write(here.join("job.shard"), format!("{SPEC}optimizer sgd lr=0.1\n")).expect("a spec");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let train = |steps: &str| {
        shardc(&here, &["train", &model, "--spec", "job.shard", "--data", &data, "--steps", steps, "--export", "t.onnx"])
            .expect(0)
            .err
    };
    let said = train("30");
    // The list of what is trained stands before the first step.
    let lines: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("step")).collect();
    assert!(said.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{said:?}");
    assert!(lines[0].starts_with("step  1/30  mean loss  2.") && lines[1].starts_with("step 30/30  mean loss  "), "{said}");
    assert!(lines[0].len() == lines[1].len() && lines[1].ends_with("   0:00 left"), "{said}");
    assert!(lines[2].starts_with("30 steps in 0."), "{said}");
    assert!(train("1").contains("\n1 step in "), "{said}");
}
