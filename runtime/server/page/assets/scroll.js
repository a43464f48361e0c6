// Scrolling follows new text while the end is in sight; after scrolling up, the view stays where it is.

const NEAR = 48;

export class Follower {
  /** `onchange(isFollowing)` is called when the end comes into sight or leaves it. */
  constructor(element, onchange) {
    this.element = element;
    this.onchange = onchange;
    this.isFollowing = true;
    this.last = 0;
    element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.follow()).observe(element);
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  scrolled() {
    const top = this.element.scrollTop;
    // Growing text also moves the end out of sight, so only scrolling up stops the following.
    if (this.isAtEnd) this.become(true);
    else if (top < this.last) this.become(false);
    this.last = top;
  }

  become(isFollowing) {
    this.isFollowing = isFollowing;
    this.onchange(isFollowing);
  }

  /** Call after text has grown. */
  follow() {
    if (this.isFollowing) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Scroll to an element, and stay there while text grows below it. */
  showElement(element) {
    this.become(false);
    element.scrollIntoView({ block: "start" });
    this.last = this.element.scrollTop;
  }

  toEnd() {
    this.become(true);
    this.follow();
  }
}
