# This repository is the tap: docs/install.md has the two commands.
class Anespec < Formula
  desc "GGUF to Core ML shards, with exact speculation on the Neural Engine"
  homepage "https://pypi.org/project/anespec/"
  license "MIT"
  head "file://#{Pathname(__FILE__).realpath.parent.parent.parent}", using: :git, branch: "main"

  depends_on "python@3.13"

  def install
    # Most dependencies have native parts, so they are taken as wheels, of the versions that CI runs with.
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--constraint", buildpath/"constraints.txt", buildpath
    bin.install_symlink libexec/"bin/anespec"
    generate_completions_from_executable(bin/"anespec", shell_parameter_format: :click)
  end

  test do
    system bin/"anespec", "demo"
  end
end
