/* The images of the app: its program, and libraries that are not the system's. */
#ifndef MACHTRACE_AGENT_APP_IMAGES_H
#define MACHTRACE_AGENT_APP_IMAGES_H

/* Publish the addresses of the app's images that are loaded now. By one thread at a time. */
void machtrace_app_images_publish(void);

#endif
