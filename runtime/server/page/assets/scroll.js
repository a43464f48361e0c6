// Scrolling follows what is written as long as its reader is at the end; whoever scrolled up is left in peace.

const NEAR = 48;

export class Follower {
  /** `onchange` is called with whether the end is in sight. */
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
    // Text that grows moves the end away, too; only who goes up wants to stay.
    if (this.isAtEnd) this.become(true);
    else if (top < this.last) this.become(false);
    this.last = top;
  }

  become(isFollowing) {
    this.isFollowing = isFollowing;
    this.onchange(isFollowing);
  }

  /** To be called after text has grown. */
  follow() {
    if (this.isFollowing) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Shows an element, and stays there however much text grows below it. */
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
